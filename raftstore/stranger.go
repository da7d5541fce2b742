package raftstore

// IsStranger reports whether a server is known here to be no member, by its ID and the revision in
// its certificate. A server with an old view may lack newer members, and its vote may be needed for
// one of these. So three things must hold:
//
//   - this server is a member itself: one that joins knows no members;
//   - it follows a leader of its own view, or leads. Without one its view may be any old one, and
//     it would refuse the vote that ends that;
//   - it has reached the revision in the certificate. That alone would not do: after a restart, a
//     member's certificate has the revision of its last snapshot.
func (s *Server) IsStranger(id string, dated uint64) bool {
	var member, led bool
	for _, m := range s.Members() {
		if m.ID == id {
			return false
		}
		member = member || m.Self
		led = led || m.Leader
	}
	return member && led && dated <= s.Revision()
}
