package main

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

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/raftstore/backup"
)

// snapshotClient talks to a server about backups. It streams, so it is a plain HTTP client with the
// kubeconfig's identity and no limit of time.
type snapshotClient struct {
	config *rest.Config
	http   *http.Client
}

func newSnapshotClient(kubeconfig string) (*snapshotClient, error) {
	config, err := clientConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client.Timeout = 0
	return &snapshotClient{config: config, http: client}, nil
}

func (s *snapshotClient) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
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

// save streams a backup from the server into a file: the path, or one in this directory that is
// named by its time and revision.
func (s *snapshotClient) save(c *cobra.Command, path, keyText string) (*backup.File, error) {
	key, err := parseKey(keyText)
	if err != nil {
		return nil, err
	}
	wish, err := json.Marshal(backups.SnapshotRequest{Key: keyText, Unsealed: key == nil})
	if err != nil {
		return nil, err
	}
	stopped := &exitError{exitInterrupted, errors.New("save a backup: interrupted; no file was written, and nothing was changed")}
	response, err := s.do(c.Context(), http.MethodPost, backups.SnapshotSavePath, bytes.NewReader(wish))
	switch {
	case err != nil && c.Context().Err() != nil:
		return nil, stopped
	case err != nil:
		return nil, fmt.Errorf("save a backup: %w", withAdvice(s.config, err))
	}
	defer response.Body.Close()
	if err := withAdvice(s.config, refusal(response)); err != nil {
		return nil, fmt.Errorf("save a backup: %w", err)
	}
	write := func(w io.Writer) error {
		_, err := io.Copy(io.MultiWriter(w, newProgress(c, "saved", 0)), response.Body)
		return err
	}
	var file backup.File
	if path == "" {
		file, err = backup.SaveIn(".", key, write)
	} else {
		file, err = backup.Save(path, key, write)
	}
	switch {
	case err != nil && c.Context().Err() != nil:
		return nil, stopped
	case err != nil:
		return nil, fmt.Errorf("save a backup: %w", err)
	}
	return &file, nil
}

// restore streams a file to the server.
func (s *snapshotClient) restore(c *cobra.Command, path string, wish backups.SnapshotRequest) (*backups.Restored, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	body, err := backups.RestoreBody(wish, io.TeeReader(f, newProgress(c, "sent", info.Size())))
	if err != nil {
		return nil, err
	}
	response, err := s.do(c.Context(), http.MethodPost, backups.SnapshotRestorePath, body)
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
	err = withAdvice(s.config, refusal(response))
	if json.Unmarshal(data, restored) == nil && restored.Unknown {
		return nil, &exitError{exitUnfinished, fmt.Errorf("restore %s: it may or may not have taken effect; doing it again does no harm: %w", path, err)}
	}
	if restored.NoLeader {
		return nil, &exitError{exitNoQuorum, fmt.Errorf("restore %s: nothing was changed: %w", path, err)}
	}
	if response.StatusCode == http.StatusConflict {
		return nil, &exitError{exitRefused, fmt.Errorf("restore %s: refused, nothing was changed: %w", path, err)}
	}
	return nil, fmt.Errorf("restore %s: nothing was changed: %w", path, err)
}

// lostAnswer is returned when a restore was sent, and what became of it was not heard. Where there
// was no connection nothing was sent.
func (s *snapshotClient) lostAnswer(path string, err error) error {
	if unsent(err) {
		return fmt.Errorf("restore %s: nothing was changed: %w", path, withAdvice(s.config, err))
	}
	return &exitError{exitUnfinished, fmt.Errorf("restore %s: the answer was lost, so it may or may not have taken effect; doing it again does no harm: %w", path, err)}
}

// listSnapshots returns the backups in a directory, or, without one, those of all servers.
func listSnapshots(ctx context.Context, kubeconfig, dir string) ([]backups.SnapshotList, error) {
	if dir != "" {
		if info, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("--dir: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("--dir %s is no directory", dir)
		}
		files, err := backup.List(dir)
		return []backups.SnapshotList{{Dir: dir, Files: files}}, err
	}
	client, err := newSnapshotClient(kubeconfig)
	if err != nil {
		return nil, err
	}
	response, err := client.do(ctx, http.MethodGet, backups.SnapshotsPath+"?all=true", nil)
	if err != nil {
		return nil, fmt.Errorf("list the backups: %w", withAdvice(client.config, err))
	}
	defer response.Body.Close()
	if err := withAdvice(client.config, refusal(response)); err != nil {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	var lists []backups.SnapshotList
	if err := json.NewDecoder(response.Body).Decode(&lists); err != nil {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	return lists, nil
}
