// Package watchwriter writes the responses of watches so that events which are ready at the same
// time go out together.
//
// The API machinery flushes a watch's response when the queue of its events is empty. On a busy
// server each event finds it empty: the goroutine that fills the queue and the one that writes take
// turns. Each event of each watcher is a frame, a TLS record and a system call then, which cost far
// more than the event itself, whose encoding all watchers share.
//
// So a [Handler] wraps the response, and [Gather] gives it the queue. At a flush, the response lets
// the goroutines run that are ready, among them those that bring the next events. Where the queue
// has events then, the flush is left to the last of them.
//
// Where thousands watch the same objects, each event makes thousands of goroutines ready at once.
// All other work of the server, the next write included, would wait behind them at each of its
// steps. So only as many watches have a turn at a time as there are processors. The others wait in
// a line, where Go's scheduler does not see them. A watch that is a [Reader] waits there with one
// event in hand, takes the events that have come meanwhile, and passes the turn to its response. Of
// any other watch, the response alone takes a turn, before it is written to.
//
// # Invariants
//
//   - Turns are given in the order of the requests for them. No request waits while a turn is free.
//   - No event waits for time to pass, or for an event that may not come. On an idle server nothing
//     else is ready, and an event is sent at once. On a busy one it waits for responses that are
//     written to, each for no longer than [patience].
//   - A client that does not read keeps others waiting once, and no more until it reads again.
//   - The bytes are those that the API machinery writes, in the same order.
//   - A response holds no more than [enough] bytes back, and none after its watch has been stopped.
//   - Only a storage whose watch goes to the client unchanged calls Gather: a wrapper that leaves
//     events out between the queue and the response would leave the flush out, too.
package watchwriter
