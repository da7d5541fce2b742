package backup

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"filippo.io/age"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/snapshot"
)

// Source is the content of a backup.
type Source struct {
	// About: Revision, StateHash, Items, Sealed and Secrets are filled in.
	About About
	View  kv.View
	// Secrets of the cluster, by name. They are omitted without a key.
	Secrets map[string][]byte
}

// Write writes a backup, sealed with the key unless that is nil, and returns its description.
func Write(w io.Writer, src Source, key *Key) (About, error) {
	about, meta, err := describe(src, key)
	if err != nil {
		return about, err
	}
	content := head{About: about}
	if about.Secrets {
		content.Secrets = src.Secrets
	}
	aboutJSON, err := json.Marshal(about)
	if err != nil {
		return about, err
	}
	headJSON, err := json.Marshal(content)
	if err != nil {
		return about, err
	}
	b := &blockWriter{w: w, sum: sha256.New()}
	b.put(le.AppendUint32([]byte(magic), Version))
	b.block(kindAbout, aboutJSON)
	stream := io.WriteCloser(b)
	if key != nil {
		if stream, err = age.Encrypt(b, key.recipient); err != nil {
			return about, fmt.Errorf("seal the backup: %w", errors.Join(err, b.err))
		}
	}
	_, err = stream.Write(append(le.AppendUint32(nil, uint32(len(headJSON))), headJSON...))
	if err == nil {
		err = snapshot.Write(stream,
			snapshot.Source{Meta: meta, Items: func(yield func(kv.Item) bool) { src.View.Ascend("", "", yield) }})
	}
	if err == nil {
		err = stream.Close()
	}
	if err == nil {
		err = b.end()
	}
	if err != nil {
		return about, fmt.Errorf("write the backup: %w", err)
	}
	return about, nil
}

// describe counts the items and recomputes the hash of the state.
func describe(src Source, key *Key) (About, snapshot.Meta, error) {
	about := src.About
	var hash, n uint64
	src.View.Ascend("", "", func(item kv.Item) bool {
		hash += mvcc.Hash(&item)
		n++
		return true
	})
	if kept, ok := src.View.(interface{ Hash() uint64 }); ok && kept.Hash() != hash {
		return about, snapshot.Meta{},
			fmt.Errorf(
				"the items of revision %d have the hash %016x and the store has kept %016x: this server's state is damaged; make the backup on another one",
				src.View.Revision(), hash, kept.Hash())
	}
	about.Created = about.Created.UTC()
	about.Revision, about.StateHash, about.Items = src.View.Revision(), hashText(hash), n
	about.Sealed, about.Secrets = key != nil, key != nil && len(src.Secrets) > 0
	return about, snapshot.Meta{Revision: about.Revision, Now: about.Created.UnixMilli(), Hash: hash, Items: n}, nil
}

// blockWriter cuts a stream into blocks. After the first error it does nothing.
type blockWriter struct {
	w     io.Writer
	sum   hash.Hash // over everything written
	raw   []byte
	total uint64 // bytes of the stream
	err   error
}

func (b *blockWriter) put(p []byte) {
	if b.err == nil {
		b.sum.Write(p)
		_, b.err = b.w.Write(p)
	}
}

func (b *blockWriter) block(kind byte, payload []byte) {
	var h [blockHead]byte
	h[0] = kind
	le.PutUint32(h[1:], uint32(len(payload)))
	le.PutUint32(h[5:], blockChecksum(h[:5], payload))
	b.put(h[:])
	b.put(payload)
}

// Write implements io.Writer, for the stream.
func (b *blockWriter) Write(p []byte) (int, error) {
	n := len(p)
	b.total += uint64(n)
	for len(p) > 0 {
		take := min(blockSize-len(b.raw), len(p))
		b.raw, p = append(b.raw, p[:take]...), p[take:]
		if len(b.raw) == blockSize {
			b.flush()
		}
	}
	return n, b.err
}

func (b *blockWriter) flush() {
	if len(b.raw) > 0 {
		b.block(kindData, b.raw)
		b.raw = b.raw[:0]
	}
}

// Close ends the stream; end follows.
func (b *blockWriter) Close() error {
	b.flush()
	return b.err
}

func (b *blockWriter) end() error {
	b.flush()
	b.block(kindEnd, b.sum.Sum(le.AppendUint64(nil, b.total)))
	return b.err
}
