"""`python -m geoseg.classify`."""

from geoseg.classify import main

raise SystemExit(main())
