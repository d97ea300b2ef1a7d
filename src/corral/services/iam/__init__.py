"""AWS IAM: roles, policies and instance profiles, stored only. Policies are not enforced."""
