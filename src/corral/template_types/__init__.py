"""The framework of CloudFormation resource types. Services declare their types with it."""
