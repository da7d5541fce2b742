// Package encryption encrypts the values of resources in the store with the data keys of the
// cluster. It is a storage.Sealer for each resource. Which key encrypts, and which resources are
// encrypted, changes while the server runs: see Keys.
//
//	k8s:enc:barque:v1:<ID of the key>:<random 32 bytes><nonce><AES-256-GCM of the object>
//
// Each value has a key of its own, which HKDF derives from the data key and the random bytes. The
// place of the value in the store is authenticated with it.
//
// A file of providers (package provider) may write in place of the data keys. The state of the keys
// lists it then, so that the key of a value follows from that state and from this server's file.
//
// Invariants:
//   - a value that cannot be decrypted is an error of its reader. It is never taken for an absent
//     or an empty object, and nothing overwrites it;
//   - each write of a resource that can be encrypted requires that the state of the keys is still
//     the one by which its value was made, also while the resource is in clear. So no value under
//     an old key, and none in clear, comes into the store after the keys have gone on;
//   - a value of a provider is written only while the state lists the file, and the key under which
//     the value is. Otherwise the data key writes;
//   - a value that the state covers is never written in clear while there is a data key, and an
//     encrypted value becomes clear only if its resource was taken out, or encryption was switched
//     off;
//   - resources that can never be encrypted are stored as if this package was not there.
//
// It keeps no keys, and does not decide when they change: membership/datakeys does.
package encryption

// Cipher is the cipher of values, for reports.
const Cipher = "AES-256-GCM, with a key for each value"
