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
// A rejected pod waits for an event that one of the plugins that rejected it has registered, and
// whose hint says that it may help. Events that happen while a pod is in flight are kept, and
// count when it is rejected: an event is never lost between the snapshot and the rejection. As a
// safety net, every pod is tried again after Config.MaxUnschedulable.
//
// A back-off after a rejection ends early when no pod is active: it leaves the turn to others, and
// there are none.
//
// The package knows nothing of nodes and calls no API.
package queue
