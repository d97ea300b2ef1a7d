"""S3: buckets, objects, versions and multipart uploads. The bytes of objects are blobs. The state store has everything else."""
