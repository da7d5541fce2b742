package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/raftstore/backup"
)

// Snapshots talks to a server about backups. It streams, so it is a plain HTTP client with the
// kubeconfig's identity and no limit of time.
type Snapshots struct {
	config *rest.Config
	http   *http.Client
}

// NewSnapshots returns a client of the server that the configuration leads to.
func NewSnapshots(config *rest.Config) (*Snapshots, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client.Timeout = 0
	return &Snapshots{config: config, http: client}, nil
}

func (s *Snapshots) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	base := s.config.Host
	if !strings.Contains(base, "://") {
		base = "https://" + base
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(base, "/")+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", rest.DefaultKubernetesUserAgent())
	return s.http.Do(r)
}

// Host is the server's address.
func (s *Snapshots) Host() string { return s.config.Host }

// Progress returns a writer that counts the copied bytes; total is 0 if unknown.
type Progress func(total int64) io.Writer

// Save streams a backup from the server into a file: the path, or a file in this directory named by
// time and revision. keyText is the text of the key, empty for none.
func (s *Snapshots) Save(ctx context.Context, path, keyText string, progress Progress) (*backup.File, error) {
	var key *backup.Key
	var err error
	if keyText != "" {
		if key, err = backup.ParseKey(keyText); err != nil {
			return nil, err
		}
	}
	wish, err := json.Marshal(backups.SnapshotRequest{Key: keyText, Unsealed: key == nil})
	if err != nil {
		return nil, err
	}
	stopped := &exitcode.Error{Code: exitcode.Interrupted,
		Err: errors.New("save a backup: interrupted; no file was written, and nothing was changed")}
	response, err := s.do(ctx, http.MethodPost, backups.SnapshotSavePath, bytes.NewReader(wish))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, stopped
	case err != nil:
		return nil, fmt.Errorf("save a backup: %w", WithAdvice(s.config, err))
	}
	defer response.Body.Close()
	if err := WithAdvice(s.config, refusal(response)); err != nil {
		return nil, fmt.Errorf("save a backup: %w", err)
	}
	write := func(w io.Writer) error {
		_, err := io.Copy(io.MultiWriter(w, progress(0)), response.Body)
		return err
	}
	var file backup.File
	if path == "" {
		file, err = backup.SaveIn(".", key, write)
	} else {
		file, err = backup.Save(path, key, write)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, stopped
	case err != nil:
		return nil, fmt.Errorf("save a backup: %w", err)
	}
	return &file, nil
}

// Restore streams a file to the server.
func (s *Snapshots) Restore(
	ctx context.Context, path string, wish backups.SnapshotRequest, progress Progress,
) (*backups.Restored, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	body, err := backups.RestoreBody(wish, io.TeeReader(f, progress(info.Size())))
	if err != nil {
		return nil, err
	}
	response, err := s.do(ctx, http.MethodPost, backups.SnapshotRestorePath, body)
	if err != nil {
		return nil, s.lostAnswer(path, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, s.lostAnswer(path, err)
	}
	restored := new(backups.Restored)
	if response.StatusCode == http.StatusOK {
		return restored, json.Unmarshal(data, restored)
	}
	response.Body = io.NopCloser(bytes.NewReader(data))
	err = WithAdvice(s.config, refusal(response))
	if json.Unmarshal(data, restored) == nil && restored.Unknown {
		return nil,
			&exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf("restore %s: it may or may not have taken effect; doing it again does no harm: %w",
					path, err)}
	}
	if restored.NoLeader {
		return nil,
			&exitcode.Error{Code: exitcode.NoQuorum, Err: fmt.Errorf("restore %s: nothing was changed: %w", path, err)}
	}
	if response.StatusCode == http.StatusConflict {
		return nil,
			&exitcode.Error{Code: exitcode.Refused,
				Err: fmt.Errorf("restore %s: refused, nothing was changed: %w", path, err)}
	}
	return nil, fmt.Errorf("restore %s: nothing was changed: %w", path, err)
}

// lostAnswer is the error if a restore was sent and its outcome is unknown. Without a connection
// nothing was sent.
func (s *Snapshots) lostAnswer(path string, err error) error {
	if unsent(err) {
		return fmt.Errorf("restore %s: nothing was changed: %w", path, WithAdvice(s.config, err))
	}
	return &exitcode.Error{Code: exitcode.Unfinished,
		Err: fmt.Errorf(
			"restore %s: the answer was lost, so it may or may not have taken effect; repeating it does no harm: %w",
			path, err)}
}

// List returns the backups of all servers.
func (s *Snapshots) List(ctx context.Context) ([]backups.SnapshotList, error) {
	response, err := s.do(ctx, http.MethodGet, backups.SnapshotsPath+"?all=true", nil)
	if err != nil {
		return nil, fmt.Errorf("list the backups: %w", WithAdvice(s.config, err))
	}
	defer response.Body.Close()
	if err := WithAdvice(s.config, refusal(response)); err != nil {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	var lists []backups.SnapshotList
	if err := json.NewDecoder(response.Body).Decode(&lists); err != nil {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	return lists, nil
}
