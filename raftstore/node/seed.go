package node

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// ProtoSeed is the protocol by which a server in quarantine gets a right state: it opens a
// connection to the leader, says seedVersion, and is sent the length of a description, the
// description, a raft.SnapshotMeta in JSON, and a snapshot.
const ProtoSeed = "barque-seed/1"

const (
	seedVersion byte = 1
	maxSeedMeta      = 1 << 20
	// seedStall is how long one of the two may wait for the other before it gives up.
	seedStall = 30 * time.Second
)

// acceptSeeds serves servers in quarantine, one at a time, until the listener is closed.
func (n *Node) acceptSeeds(l net.Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { // ends with the connection, or with the node
			stop := context.AfterFunc(n.ctx, func() { conn.Close() })
			defer stop()
			defer conn.Close()
			if err := n.sendSeed(&checked{Conn: conn, self: n.id, succeeded: n.succeeded}); err != nil {
				n.cfg.Logger.Warn("could not send the state to a server in quarantine", "to", conn.RemoteAddr(), "err", err)
			}
		})
	}
}

func (n *Node) sendSeed(conn net.Conn) error {
	var version [1]byte
	if _, err := io.ReadFull(&patient{conn}, version[:]); err != nil {
		return err
	}
	if version[0] != seedVersion {
		return fmt.Errorf("it asks for version %d of the protocol, this program has %d", version[0], seedVersion)
	}
	if err := n.quarantine.err(); err != nil {
		return err
	}
	n.seeding.Lock()
	defer n.seeding.Unlock()
	meta, state, err := n.newestSnapshot()
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

// newestSnapshot takes a snapshot now, or opens the newest when nothing has happened since.
func (n *Node) newestSnapshot() (*raft.SnapshotMeta, io.ReadCloser, error) {
	future := n.raft.Snapshot()
	err := future.Error()
	if err == nil {
		return future.Open()
	}
	if !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil, nil, fmt.Errorf("take a snapshot: %w", err)
	}
	all, err := n.storage.snapshots.List()
	if err == nil && len(all) == 0 {
		err = errors.New("there is none, and nothing to take one of")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the newest snapshot: %w", err)
	}
	return n.storage.snapshots.Open(all[0].ID)
}

// fetchSeed asks the leader for its state and has take read it.
func (n *Node) fetchSeed(ctx context.Context, take func(*raft.SnapshotMeta, io.Reader) error) error {
	leader, local, err := n.leader()
	if err != nil {
		return err
	}
	if local {
		return errors.New("this server leads itself at the moment")
	}
	conn, err := greet(ctx, n.cfg.Stream, leader, ProtoSeed, n.id)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	in := &patient{conn}
	if _, err := in.Write([]byte{seedVersion}); err != nil {
		return err
	}
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return fmt.Errorf("the leader sends no state: %w", err)
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > maxSeedMeta {
		return fmt.Errorf("the leader describes its state in %d bytes, the limit is %d", size, maxSeedMeta)
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
	if err := p.Conn.SetReadDeadline(time.Now().Add(seedStall)); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.Conn.SetWriteDeadline(time.Now().Add(seedStall)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}
