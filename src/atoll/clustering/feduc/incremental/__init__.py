"""The bound and the completion times of a clustering that changes by one client, without computing them anew."""
