package backup

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// Version of the format that this program writes.
const Version = 1

var (
	// ErrVersion is returned for a backup that a newer program wrote.
	ErrVersion = errors.New("backup of an unknown version")
	// ErrCorrupt is returned for a file that is no backup, is damaged, or is truncated.
	ErrCorrupt = errors.New("backup is damaged")
	// ErrKey is returned when a sealed backup cannot be opened: the key is missing, or is another
	// one.
	ErrKey = errors.New("backup cannot be opened")
)

// About is a backup's description of itself, in clear.
type About struct {
	ClusterID string    `json:"clusterID"`
	Server    string    `json:"server"` // name of the server that wrote it
	Barque    string    `json:"barque"` // version of the program
	Created   time.Time `json:"created"`
	Revision  uint64    `json:"revision"`
	StateHash string    `json:"stateHash"` // 16 hexadecimal digits
	Items     uint64    `json:"items"`
	// Sealed: the content is encrypted. Secrets: the keys of the cluster are in it.
	Sealed  bool `json:"sealed"`
	Secrets bool `json:"secrets"`
	// Settings of the cluster that a new one must begin with. Not secret.
	Settings json.RawMessage `json:"settings,omitempty"`
}

// head begins the content.
type head struct {
	About   About             `json:"about"`
	Secrets map[string][]byte `json:"secrets,omitempty"`
}

const (
	magic     = "BARQBKUP"
	fileHead  = len(magic) + 4
	blockHead = 1 + 4 + 4
	blockSize = 256 << 10
	maxBlock  = 4 << 20 // nothing larger is read; about and head are far below it

	kindAbout byte = 1
	kindData  byte = 2
	kindEnd   byte = 3
)

// endLen is how long the payload of the last block is: the length of the stream and a SHA-256.
const endLen = 8 + 32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func blockChecksum(kindAndLength, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(kindAndLength, castagnoli), castagnoli, payload)
}

func hashText(hash uint64) string { return fmt.Sprintf("%016x", hash) }

var le = binary.LittleEndian
