// Package provider encrypts resources as an EncryptionConfiguration says: the file of
// --encryption-provider-config, as of kube-apiserver. The providers are upstream's: aescbc, aesgcm,
// secretbox, identity and plugins of KMS v2. A resource that the file does not name belongs to the
// data keys of the cluster (package encryption).
//
//	read:  the data keys' values, then the file's providers, then values in clear
//	write: the first provider of the resource
//
// Each server has a file of its own. What holds while the files differ:
//   - the data key of the cluster writes what the file names, if the cluster has one. All servers
//     read that. So files come to the servers one after the other without an outage;
//   - a value that this server cannot decrypt is an error that names the value's key, the provider
//     and the file. It is never taken for an absent object, and nothing overwrites it.
//
// Each write requires the state of the data keys that it began with, as all writes do (package
// encryption). So no write that began with an earlier file comes after a rewrite of all objects.
package provider
