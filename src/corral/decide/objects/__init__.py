"""Rules of objects: ranges, conditions, expiry, CORS, notifications, and manifests of images."""
