package backup

import (
	"bufio"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/barque/barque/raftstore/kv"
)

// Report is the contents of a backup.
type Report struct {
	About About `json:"about"`
	// Verified is set if the content was read and the hash of the state recomputed. Otherwise, for
	// lack of the key, only the checksums were verified.
	Verified bool `json:"verified"`
	// SecretNames are the names of the secrets in it.
	SecretNames []string `json:"secretNames,omitempty"`
	Kinds       []Count  `json:"kinds,omitempty"` // of keys, by their first two parts
}

// Count is how many keys begin with a prefix, and how many bytes their values have.
type Count struct {
	Prefix string `json:"prefix"`
	Keys   uint64 `json:"keys"`
	Bytes  uint64 `json:"bytes"`
}

// Verify reads and verifies a whole backup: with a key that opens it everything, otherwise the
// checksums. check is called with each item, and the secrets in the backup; nil checks nothing
// more.
func Verify(r io.Reader, key *Key, check func(secrets map[string][]byte, item *kv.Item) error) (*Report, error) {
	buffered := bufio.NewReaderSize(r, blockSize)
	blocks, about, err := open(buffered)
	if err != nil {
		return nil, err
	}
	report := &Report{About: about}
	if about.Sealed && !key.CanOpen() {
		_, err := io.Copy(io.Discard, blocks)
		return report, err
	}
	b := &Reader{blocks: blocks, about: about, content: blocks}
	if about.Sealed {
		if err := b.unseal(key); err != nil {
			return report, err
		}
	}
	if err := b.readHead(); err != nil {
		return report, err
	}
	counts := map[string]*Count{}
	err = b.Items(func(item *kv.Item) error {
		kind := kindOf(item.Key)
		c := counts[kind]
		if c == nil {
			c = &Count{Prefix: kind}
			counts[kind] = c
		}
		c.Keys++
		c.Bytes += uint64(len(item.Value))
		if check != nil {
			return check(b.secrets, item)
		}
		return nil
	})
	if err != nil {
		return report, err
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		report.Kinds = append(report.Kinds, *counts[kind])
	}
	report.SecretNames = slices.Sorted(maps.Keys(b.secrets))
	report.Verified = true
	return report, nil
}

// kindOf returns the first two parts of a key: /registry/pods of /registry/pods/default/a.
func kindOf(key string) string {
	rest, n := strings.TrimPrefix(key, "/"), len(key)-len(strings.TrimPrefix(key, "/"))
	for range 2 {
		i := strings.IndexByte(rest, '/')
		if i < 0 {
			return key
		}
		rest, n = rest[i+1:], n+i+1
	}
	return key[:n-1]
}
