// Package rollover replaces keys that all members of a cluster share, while they are in use: new
// ones are spread, then used, and then the old ones are dropped.
//
// One value in the store says how far that is. It has a generation, which grows with each change of
// keys. A Kind says which keys these are, how they reach a member, and when a member has taken them
// over. A Manager is a server's part in it, the same for every Kind:
//
//	operator: begin, undo, force ──▶ value in the store ◀── leader: the next step (Decide)
//	                                          │                         ▲
//	                                          ▼ each server             │ its signed metadata
//	                     fetch what is lacking, write it down, use it ──┘ has the generation
//
// Guarantees:
//   - the leader alone makes the next step, in its term, only when the Kind waits for no member;
//   - a step is one write that names the revision before it: after any crash, any leader goes on;
//   - a server writes keys to its disk before it uses them;
//   - a server never goes back to an older generation. A restored backup may bring an older state,
//     that of another cluster, or none: the leader writes the right one;
//   - a value that a newer Barque has written is left alone;
//   - operators can change the state while a server fetches keys: those who have them may be lost.
//
// It is for servers. Agents ask a server, each Kind in its own way.
package rollover
