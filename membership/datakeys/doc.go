// Package datakeys keeps the keys with which the API's objects are encrypted in the store, and
// exchanges them while everything runs.
//
// The state of the keys is one value in the store, and so are the keys, each sealed with the CA's
// key. A server reads the keys from there: whichever value it has, it has the key of that value as
// well, because the state came before it in the log. It keeps them in a file of its own, too, so
// that an exchange of the CA or a restored backup takes none from it.
//
//	          enable, rotate                 all servers have it               all is rewritten
//	at rest ─────────────────▶ spread ──────────────────────▶ rewrite ─────────────────────────┐
//	   ▲       a new key is      │                               │  the new key encrypts;        │
//	   │       made known        │ (rewrite and disable          │  the leader rewrites          │
//	   │                         │  begin here ────────────────▶ │  each object                  │
//	   │                                                                                         ▼
//	   └──────────────────────────────────────────────────────────────────────────────────── clean
//	     no value is under an old key: it is dropped     each server drops what its disk had before
//
// It is a rollover (package rollover). Beside the guarantees of every rollover, these hold:
//
//   - a key is in the store, and on the disks of a quorum, before any value is under it;
//   - a write of an encrypted resource counts only while the state of the keys is the one by which
//     its value was made. So nothing is written under an old key once the new one encrypts;
//   - a key is dropped only after the leader has seen, twice, that no value is under it;
//   - a state is never replaced by one that lacks its keys, also if no server can open them now;
//   - a server that cannot open a key of the state is not ready, and does not lead;
//   - a file of providers writes only while the state lists it and the keys of its providers. The
//     leader lists what all servers have, at rest or while it rewrites, which begins anew then;
//   - keys in a KMS are listed only after all servers have decrypted the same value under them: two
//     KMS may name different keys alike;
//   - there is a data key that encrypts while a file is listed, so that servers without the file
//     write what all read. The resources of a file stay encrypted.
//
// It does not know objects: Objects does.
package datakeys
