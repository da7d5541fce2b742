// Package queue decides which pod is tried next and when a rejected pod is tried again.
//
// A pod is in exactly one place:
//
//	           Add                         Pop
//	──────────────────────▶ active ─────────────────▶ in flight ──▶ Done (scheduled)
//	   │ gated                ▲  ▲                     │      │
//	   ▼                      │  │ back-off is over    │      │ Requeue after an error
//	unschedulable ────────────┘  │                     │      ▼
//	   ▲    │   an event that a  └───────────────── back-off ◀┘
//	   │    │   plugin waits for                     ▲ │
//	   │    └────────────────────────────────────────┘ │
//	   └───────────────────────────────────────────────┘ Requeue after a rejection
//
// A rejected pod waits for an event that one of its rejecting plugins has registered, and whose
// hint says that it may help. Events during a pod's flight are kept and count when it is rejected.
// So no event between the snapshot and the rejection is lost. As a safety net, every pod is tried
// again after Config.MaxUnschedulable.
//
// A back-off after a rejection lets other pods go first. It ends early when no pod is active.
//
// The package knows nothing of nodes and calls no API.
package queue
