package peer

// Identity is what a server says of itself when a connection is opened, and expects of the other
// end.
type Identity struct{ ClusterID, ServerID string }
