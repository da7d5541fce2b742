// Package keyring rotates the keys of the gossip pool while it runs.
//
// All members of the pool encrypt with one key. A rotation brings another one in three steps, each
// of which begins when every living member has shown, in its signed metadata, that it has done the
// one before:
//
//	          begin                                                  all have it
//	at rest ─────────▶ add: old sends, new is read ────────────▶ use: new sends, old is read
//	   ▲                 │                                          │              │
//	   │                 │ undo                                undo │              │ all send with it
//	   │                 ▼                                          ▼              ▼
//	   │◀──────────── withdraw: only the old one ◀──── back: old sends        remove: only the new one
//	   │                                                                           │
//	   └────────────────────────────── all have done so ◀──────────────────────────┘
//
// It is a rollover (package rollover). Its state has the keys, sealed with the CA's key.
// What holds, beside what does for every rollover:
//
//   - a member never sends with a key before all living ones could read it;
//   - keys reach a member by the store, or over TLS from a server that has checked its certificate
//     and that it still belongs to the cluster. They are never sent in the pool itself: whoever
//     knows the old key would learn the new one.
//
// A member that was away meanwhile asks a server when it comes back (Refresher). One that lives and
// cannot be reached holds a rotation up, unless it is forced.
package keyring
