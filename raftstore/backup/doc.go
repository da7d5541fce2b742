// Package backup is the file from which a cluster can be rebuilt from nothing.
//
//	file    = magic version block*
//	block   = kind length checksum payload
//	content = length head snapshot
//
// Numbers are little-endian uint32 except the kind, a byte. The checksum is CRC-32C over the kind,
// the length and the payload. The first block, in clear, is About in JSON. The following blocks
// carry the content as a stream: in age's format if the backup is sealed with a key, otherwise as
// it is. The last block has the length of that stream and the SHA-256 of everything before it. The
// head of the content, in JSON, repeats About, so that the clear one cannot be exchanged, and has
// the secrets. The snapshot is in the format of package snapshot.
//
// Invariants:
//
//   - every byte of a file is covered by a checksum, and damage is reported with its place;
//   - the secrets of a cluster are in a file only if it is sealed;
//   - without the key a sealed file can be checked for damage (Check). With it everything is
//     verified
//     and the hash of the state recomputed (Reader);
//   - a file under its final name was read back and verified after it was written (Save). A
//     released version is never changed.
//
// The caller chooses the secrets, and the time of a backup.
package backup
