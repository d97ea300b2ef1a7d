"""S3: buckets, objects, versions and multipart uploads. The bytes are blobs; everything else is in rows of the state store."""
