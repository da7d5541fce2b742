// Package runtime runs the work that belongs to the leader: it owns the life of the controllers'
// goroutines, their work queues and their informer handlers.
//
// Invariants:
//   - a Routine runs only while this server leads, with a client whose writes the store refuses in
//     any other term, so that two leaders can never both act;
//   - when leadership ends, everything that a Routine started is joined before the next term may
//     start here, and none of its informer handlers is left behind: informers outlive terms;
//   - a key is reconciled by one worker at a time, and not before the informers have seen the
//     writes of its last reconcile (Writes), so that a reconciler never acts twice on the same
//     view;
//   - a key that fails, or asks for another try at once, waits with back-off until it succeeds, and
//     no key is reconciled more than 50 times a second for long, whatever wakes it.
//
// It does not depend on any API kind. Work of every server does not belong here: it has its own
// Run, started by cmd.
package runtime
