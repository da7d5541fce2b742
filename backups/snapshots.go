package backups

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// Paths of the backups. They are for system:masters only: a backup has all secrets of the cluster,
// and a restore can grant any right.
const (
	// SnapshotsPath: GET answers with a SnapshotList. The parameter all=true includes those of all
	// servers.
	SnapshotsPath = "/barque/v1/snapshots"
	// SnapshotSavePath: POST of a SnapshotRequest in JSON; the answer is a backup. A truncated one
	// is incomplete.
	SnapshotSavePath = "/barque/v1/snapshot-save"
	// SnapshotRestorePath: POST of RestoreBody's output; the answer is a Restored.
	SnapshotRestorePath = "/barque/v1/snapshot-restore"
)

// SnapshotRequest goes before a save or a restore.
type SnapshotRequest struct {
	// Key is the text of the key that seals the backup, or opens it; empty for none.
	Key string `json:"key,omitempty"`
	// Unsealed asks for a backup without a key, which is refused otherwise.
	Unsealed bool `json:"unsealed,omitempty"`
	// OtherCluster allows to restore a backup of another cluster.
	OtherCluster bool `json:"otherCluster,omitempty"`
	// Wait is how long a restore waits for a ready store, in seconds; 0 is the time of an election.
	Wait float64 `json:"waitSeconds,omitempty"`
}

func (r *SnapshotRequest) key() (*backup.Key, error) {
	if r.Key == "" {
		return nil, nil
	}
	return backup.ParseKey(r.Key)
}

// Restored is the answer to a restore: the result, or the reason of a refusal.
type Restored struct {
	Revision uint64       `json:"revision,omitempty"` // of the cluster after it
	Backup   backup.About `json:"backup"`
	Error    string       `json:"error,omitempty"`
	// Unknown means that the restore may or may not have taken effect.
	Unknown bool `json:"unknown,omitempty"`
	// NoLeader is set if there has been no leader for long, so nothing was changed.
	NoLeader bool `json:"noLeader,omitempty"`
}

// SnapshotList are the backups on one server.
type SnapshotList struct {
	Server string `json:"server"`
	Dir    string `json:"dir"`
	Every  string `json:"every"` // of the schedule; "0s" is never
	Keep   int    `json:"keep"`
	// Refused is the reason why the schedule makes none.
	Refused string        `json:"refused,omitempty"`
	Files   []backup.File `json:"files"`
	// Problem is why a server's list is missing.
	Problem string `json:"problem,omitempty"`
}

// ErrUnsealed is returned when a backup is to be saved without a key, and that was not asked for.
var ErrUnsealed = errors.New(
	"no key is given to seal the backup: it would hold the Secrets of applications, in clear or so that a new cluster cannot read them, and not the keys of the cluster, " +
		"without which kubeconfigs and certificates are void in a cluster that is rebuilt from it. Give --key-file with a key, which `barque snapshot key` makes; or --unsealed to save it without")

// maxSnapshotRequest bounds the JSON that goes before.
const maxSnapshotRequest = 64 << 10

// RestoreBody is the body of a restore: the request, with its length before it, and the backup.
func RestoreBody(r SnapshotRequest, file io.Reader) (io.Reader, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	data = append(binary.LittleEndian.AppendUint32(nil, uint32(len(data))), data...)
	return io.MultiReader(bytes.NewReader(data), file), nil
}

// Others are the other servers.
type Others interface {
	// Each asks all servers at once, and calls take with each answer, one at a time.
	Each(ctx context.Context, method, path string, take func(name string, response *http.Response, err error))
}

// Handlers serve the paths.
func (b *Manager) Handlers(others Others) map[string]http.Handler {
	return map[string]http.Handler{
		SnapshotsPath:       extra.MastersAndServers(http.MethodGet, b.serveLists(others)),
		SnapshotSavePath:    extra.MastersOnly(http.MethodPost, b.serveSave),
		SnapshotRestorePath: extra.MastersOnly(http.MethodPost, b.serveRestore),
	}
}

func (b *Manager) serveLists(others Others) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		own, err := b.list()
		if r.URL.Query().Get("all") != "true" {
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			extra.Answer(w, http.StatusOK, own)
			return
		}
		if err != nil {
			own.Problem = err.Error()
		}
		lists := []SnapshotList{own}
		others.Each(r.Context(), http.MethodGet, SnapshotsPath, func(name string, response *http.Response, err error) {
			lists = append(lists, readList(name, response, err))
		})
		slices.SortFunc(lists, func(a, b SnapshotList) int { return strings.Compare(a.Server, b.Server) })
		extra.Answer(w, http.StatusOK, lists)
	}
}

func (b *Manager) list() (SnapshotList, error) {
	files, err := backup.List(b.Options.Dir)
	return SnapshotList{Server: b.Server, Dir: b.Options.Dir, Every: b.Options.Every.String(), Keep: b.Options.Keep,
		Refused: b.Options.refused(), Files: files}, err
}

// electionPatience is how long a restore waits for a leader by default.
const electionPatience = 4 * time.Second

// awaitStore waits until the store is ready for a restore. It fails with the reason after the
// patience, before anything was sent.
func (b *Manager) awaitStore(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, max(patience, electionPatience))
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := b.store.Ready(ctx)
		if err == nil || !errors.Is(err, raftstore.ErrUnavailable) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}

// readList reads another server's list.
func readList(name string, response *http.Response, err error) SnapshotList {
	list := SnapshotList{Server: name}
	if err == nil && response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10)) // the status is enough without it
		err = fmt.Errorf("%s answers %s: %s", name, response.Status, strings.TrimSpace(string(text)))
	}
	if err == nil {
		err = json.NewDecoder(response.Body).Decode(&list)
	}
	if err != nil {
		list.Problem = err.Error()
	}
	return list
}

func (b *Manager) serveSave(w http.ResponseWriter, r *http.Request) {
	var wish SnapshotRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, maxSnapshotRequest)).Decode(&wish); err != nil {
		http.Error(w, "the request cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	key, err := wish.key()
	if err == nil && key == nil && !wish.Unsealed {
		err = ErrUnsealed
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := &begun{w: w}
	buffered := bufio.NewWriterSize(out, 256<<10)
	_, err = b.write(r.Context(), buffered, key)
	if err == nil {
		err = buffered.Flush()
	}
	switch {
	case err == nil:
	case out.yes: // the client sees that it is cut
		b.Logger.Warn("a backup could not be sent to its end", "to", r.RemoteAddr, "err", err)
		panic(http.ErrAbortHandler)
	default:
		extra.Unavailable(w, err)
	}
}

// begun records that a part of the answer was sent.
type begun struct {
	w   http.ResponseWriter
	yes bool
}

func (b *begun) Write(p []byte) (int, error) {
	if !b.yes {
		b.yes = true
		b.w.Header().Set("Content-Type", "application/octet-stream")
	}
	return b.w.Write(p)
}

func (b *Manager) serveRestore(w http.ResponseWriter, r *http.Request) {
	restored, err := b.restoreBody(r)
	if err == nil {
		extra.Answer(w, http.StatusOK, restored)
		return
	}
	restored.Error, restored.Unknown = err.Error(), errors.Is(err, raftstore.ErrUnknownOutcome)
	restored.NoLeader = !restored.Unknown && errors.Is(err, raftstore.ErrLeaderless)
	b.Logger.Error("a restore failed", "unknown", restored.Unknown, "err", err)
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, backup.ErrCorrupt), errors.Is(err, backup.ErrVersion), errors.Is(err, backup.ErrKey):
		status = http.StatusBadRequest
	case errors.Is(err, errOtherCluster), errors.Is(err, raftstore.ErrInvalid):
		status = http.StatusConflict
	}
	extra.Answer(w, status, restored)
}

func (b *Manager) restoreBody(r *http.Request) (Restored, error) {
	var length [4]byte
	if _, err := io.ReadFull(r.Body, length[:]); err != nil {
		return Restored{}, fmt.Errorf("the request cannot be read: %w", err)
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n > maxSnapshotRequest {
		return Restored{}, fmt.Errorf("the request claims %d bytes, the limit is %d", n, maxSnapshotRequest)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r.Body, data); err != nil {
		return Restored{}, fmt.Errorf("the request cannot be read: %w", err)
	}
	var wish SnapshotRequest
	if err := json.Unmarshal(data, &wish); err != nil {
		return Restored{}, fmt.Errorf("the request cannot be read: %w", err)
	}
	key, err := wish.key()
	if err != nil {
		return Restored{}, err
	}
	if err := b.awaitStore(r.Context(), time.Duration(wish.Wait*float64(time.Second))); err != nil {
		return Restored{}, err
	}
	return b.restore(r.Context(), bufio.NewReaderSize(r.Body, 256<<10), key, wish.OtherCluster)
}
