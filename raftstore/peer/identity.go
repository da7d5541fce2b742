package peer

// Identity is a server's own name when a connection is opened, and its expectation of the
// other end.
type Identity struct{ ClusterID, ServerID string }
