"""What runs leave behind, read together: which there are, what each found, and what people say of them."""
