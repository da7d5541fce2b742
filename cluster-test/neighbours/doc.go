// Package neighbours asks on a link who has an address, by ARP and neighbour discovery, and judges
// the answers: never two machines, and for how long none.
//
//	frame.go    questions and claims, as bytes
//	watcher.go  asking at a steady pace, and the kernel's time of each answer
//	judge.go    the verdict, without a socket and without a clock
//
// A claim is an answer to a question of the watcher, or an announcement to all. The machine is the
// MAC in it. Two machines answer at overlapping times if one claims an address between two claims
// of another one, and neither took it over in between. A take-over is seen by its announcement, and
// a machine that has lost an address does not have it again within a moment.
//
// So the order of claims on the link is judged, and no machine's own word for it. That two machines
// answer one question proves nothing: a machine that is short of CPU may read a question when it
// has taken the address over, and the former holder may have answered it before.
package neighbours
