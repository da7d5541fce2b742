// Package lifecycle decides about one pod: the next steps that make its containers match its spec
// (Decide), those that end it (DecideEnd), and its status for clients (Status).
//
// All are functions of their arguments alone, which are Facts: the pod, the runtime's state of it,
// the time, and the outcomes of earlier steps. They call nothing and wait for nothing. Package pods
// collects the facts and carries the plans out.
package lifecycle
