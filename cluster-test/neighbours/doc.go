// Package neighbours asks on a link who has an address, by ARP and neighbour discovery, and judges
// the answers: never two machines, and for how long none.
//
//	frame.go    questions and claims, as bytes
//	watcher.go  asking at a steady pace, and the kernel's time of each answer
//	judge.go    the verdict, without a socket and without a clock
//
// A claim is an answer to a question of the watcher, or an announcement to all. The machine is the
// MAC in it. Two machines answer at overlapping times if
//
//   - both answer one question, or
//   - one answers between two claims of another one, and that did not take the address over in
//     between. A take-over is seen by its announcement.
//
// So the order of claims on the link is judged, and no machine's own word for it. The first rule
// alone would overlook a machine that answers only while the other one is slow.
package neighbours
