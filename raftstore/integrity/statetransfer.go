package integrity

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// Protocol is the protocol by which a server in quarantine gets a right state. It opens a
// connection to the leader and sends transferVersion. It gets the length of a description, the
// description, which is a raft.SnapshotMeta in JSON, and a snapshot. Servers of earlier versions
// know the name.
const Protocol = "barque-seed/1"

const (
	transferVersion byte = 1
	maxDescription       = 1 << 20
	// transferStall bounds each read and write of the two.
	transferStall = 30 * time.Second
)

// Send sends this server's state to a server in quarantine, which has opened the connection.
func (g *Guard) Send(conn net.Conn) error {
	var version [1]byte
	if _, err := io.ReadFull(&patient{conn}, version[:]); err != nil {
		return err
	}
	if version[0] != transferVersion {
		return fmt.Errorf("it asks for version %d of the protocol, this program has %d", version[0], transferVersion)
	}
	if err := g.Err(); err != nil {
		return err
	}
	g.sending.Lock()
	defer g.sending.Unlock()
	meta, state, err := g.server.NewestSnapshot()
	if err != nil {
		return err
	}
	defer state.Close()
	data, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	out := &patient{conn}
	if _, err := out.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)); err != nil {
		return err
	}
	_, err = io.Copy(out, state)
	return err
}

// fetch asks the leader for its state and has take read it.
func (g *Guard) fetch(ctx context.Context, take func(*raft.SnapshotMeta, io.Reader) error) error {
	conn, err := g.server.DialLeader(ctx, Protocol)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	in := &patient{conn}
	if _, err := in.Write([]byte{transferVersion}); err != nil {
		return err
	}
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return fmt.Errorf("the leader sends no state: %w", err)
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > maxDescription {
		return fmt.Errorf("the leader describes its state in %d bytes, the limit is %d", size, maxDescription)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(in, data); err != nil {
		return fmt.Errorf("the description of the leader's state: %w", err)
	}
	meta := new(raft.SnapshotMeta)
	if err := json.Unmarshal(data, meta); err != nil {
		return fmt.Errorf("the description of the leader's state: %w", err)
	}
	return take(meta, in)
}

// patient waits for each part for a limited time.
type patient struct{ net.Conn }

func (p *patient) Read(b []byte) (int, error) {
	if err := p.Conn.SetReadDeadline(time.Now().Add(transferStall)); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.Conn.SetWriteDeadline(time.Now().Add(transferStall)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}
