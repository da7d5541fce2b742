// Package backup is the file from which a cluster can be rebuilt from nothing.
//
//	file    = magic version block*
//	block   = kind length checksum payload
//	content = length head snapshot
//
// Numbers are little-endian uint32 but the kind, a byte; the checksum is CRC-32C over the kind, the
// length and the payload. The first block, in clear, is About in JSON. The blocks that follow carry
// the content as a stream, in age's format when the backup is sealed with a key and as it is
// otherwise. The last block has the length of that stream and the SHA-256 of everything before it.
// The head of the content, in JSON, repeats About, so that the clear one cannot be exchanged, and
// has the secrets; the snapshot is what package snapshot writes.
//
// What holds:
//   - every byte of a file is covered by a checksum, and damage is reported with its place;
//   - the secrets of a cluster are in a file only when it is sealed;
//   - without the key a sealed file can be checked for damage (Check), with it everything is
//     verified and the hash of the state computed anew (Reader);
//   - a file under its final name was read back and verified after it was written (Save). A
//     released version is never changed.
//
// The caller chooses the secrets, and when a backup is made.
package backup
