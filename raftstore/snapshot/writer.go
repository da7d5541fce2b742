package snapshot

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
)

// Write streams the state to w.
func Write(w io.Writer, src Source) error {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("start compression of a snapshot: %w", err)
	}
	defer enc.Close()
	b := &blocks{w: w, enc: enc}
	b.put(binary.LittleEndian.AppendUint32([]byte(magic), Version))
	b.raw = appendMeta(b.raw, &src.Meta)
	b.close(kindMeta)
	src.Items(func(item kv.Item) bool {
		b.raw = command.AppendItem(b.raw, &item)
		b.closeIfFull(kindItems)
		return b.err == nil
	})
	b.close(kindItems)
	if src.History != nil {
		src.History(func(u kv.Undo) bool {
			b.raw = appendUndo(b.raw, &u)
			b.closeIfFull(kindHistory)
			return b.err == nil
		})
		b.close(kindHistory)
	}
	for i := range src.Sessions {
		b.raw = appendSession(b.raw, &src.Sessions[i])
		b.closeIfFull(kindSessions)
	}
	b.close(kindSessions)
	if src.Staging != nil {
		b.raw = appendStaging(b.raw, src.Staging)
		b.close(kindStaging)
		src.Staged(func(item kv.Item) bool {
			b.raw = command.AppendItem(b.raw, &item)
			b.closeIfFull(kindStaged)
			return b.err == nil
		})
		b.close(kindStaged)
	}
	b.raw = binary.LittleEndian.AppendUint32(appendMeta(b.raw, &src.Meta), b.whole)
	b.close(kindEnd)
	if b.err != nil {
		return fmt.Errorf("write snapshot: %w", b.err)
	}
	return nil
}

// blocks gathers raw bytes and writes them out block by block. After the first error it does
// nothing.
type blocks struct {
	w    io.Writer
	enc  *zstd.Encoder
	raw  []byte
	out  []byte
	head [blockHead]byte
	// whole is the checksum of all blocks' checksums.
	whole uint32
	err   error
}

func (b *blocks) put(p []byte) {
	if b.err == nil {
		_, b.err = b.w.Write(p)
	}
}

func (b *blocks) closeIfFull(kind byte) {
	if len(b.raw) >= blockSize {
		b.close(kind)
	}
}

func (b *blocks) close(kind byte) {
	if len(b.raw) == 0 {
		return
	}
	b.out = b.enc.EncodeAll(b.raw, b.out[:0])
	b.head[0] = kind
	binary.LittleEndian.PutUint32(b.head[1:], uint32(len(b.raw)))
	binary.LittleEndian.PutUint32(b.head[5:], uint32(len(b.out)))
	binary.LittleEndian.PutUint32(b.head[9:], checksum(b.head[:9], b.out))
	b.whole = crc32.Update(b.whole, castagnoli, b.head[9:])
	b.put(b.head[:])
	b.put(b.out)
	b.raw = b.raw[:0]
}
