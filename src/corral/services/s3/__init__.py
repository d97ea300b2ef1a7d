"""S3: buckets, objects, uploads in parts, versions. Bytes are blobs; everything else is rows of the state."""
