// Package provider encrypts resources by an EncryptionConfiguration: the file of
// --encryption-provider-config, as of kube-apiserver. The providers are upstream's: aescbc, aesgcm,
// secretbox, identity and plugins of KMS v2.
//
// Each server has a file of its own. Which one is in use is in the state of the data keys (package
// datakeys): the hash of the file, and the labels of the keys under which its providers write.
//
//	read:  the data keys' values, then the providers of this server's file, then values in clear
//	write: the first provider of the resource, if the state lists this very file and the label of
//	       the value that it has made; otherwise the data key, which all servers have
//
// Invariants:
//   - a value of a provider comes into the store only while the state lists the file and the key
//     with which it was made: its transaction requires that state (package encryption). So no
//     server writes by a file that others may lack, and none under a key that a rewrite has
//     emptied, for however long it was off, cut off or paused;
//   - the leader lists a file when all servers run and show its hash, it reads the values stored
//     with the file, and the plugins of all encrypt with the same keys, and decrypt the leader's
//     value. Gossip decides only when a list changes, and never how a value is written;
//   - a file in use needs a data key. The resources that a file names are encrypted from then on,
//     also by servers without the file. The provider identity leaves a resource to the data key: no
//     file makes a value clear;
//   - a value that this server cannot decrypt is an error that names the value's key, the provider
//     and the file. It is never taken for an absent object, and nothing overwrites it;
//   - a server that cannot read a stored value is not ready, also if all servers have the same
//     file;
//   - no error has a key of a file in it.
package provider
