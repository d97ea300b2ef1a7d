"""S3: buckets, objects, versions and multipart uploads. The bytes of objects are files (blobs). The rest is in state.db."""
