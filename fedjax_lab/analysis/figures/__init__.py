"""The analyses of five papers: from the folders of finished runs to arrays and pictures."""
