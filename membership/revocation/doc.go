// Package revocation keeps the certificates that count no more although they are genuine and have
// not ended: those of removed servers and agents, and single ones of users.
//
// An entry revokes one of four things:
//
//	server       all certificates of one server, by its ID in the store. A server that joins again
//	             has another ID
//	agent        all certificates of a name that were issued up to a revision of the store. Those of
//	             the machine that joins again are issued later
//	certificate  one certificate, by its serial number
//	user         all certificates of a common name that were issued up to a revision of the store.
//	             Names that begin with "system:" or "barque:" are no users'
//
// So nothing is compared by a clock, but an entry's end: it goes when the CA has ended that could
// have issued one of its certificates, or when none of these CAs is believed any more.
//
// Entries are records in the store. Those of servers follow from the store's own decisions about
// its members, and the leader records them: with the CAs of the moment of the removal, and for a
// new cluster that begins with a backup and has made no such decisions. Each server and agent has a
// List, and a copy of it on its disk: it holds without a quorum, and from the first moment after a
// start. Servers follow the store. Agents ask servers at their start, from time to time, and when
// gossip shows a newer list.
//
// These always hold:
//   - an entry is never taken back, but by an operator for one key of an agent, or for its
//     certificates. A restored backup may lack entries; a server that has them keeps them, and as a
//     leader puts them back;
//   - the leader alone decides that an agent was removed, and only while its record of the agent
//     is the newest.
package revocation
