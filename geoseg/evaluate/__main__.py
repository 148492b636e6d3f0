"""`python -m geoseg.evaluate`."""

from geoseg.evaluate import main

raise SystemExit(main())
