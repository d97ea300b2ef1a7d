"""The programs that run inside the processes of Lambda functions. They import only the standard library."""
