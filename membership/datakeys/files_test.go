package datakeys_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/raftstore"
)

// fileOf is a server's file of providers for its Manager.
type fileOf struct{ *provider.Providers }

func (s *server) fileOf() datakeys.File {
	if s.plugins != nil {
		s.plugins.keys = s.keys
		return s.plugins
	}
	return fileOf{s.providers}
}

func (f fileOf) Agreed(ctx context.Context, listed string, ask bool) (datakeys.Agreement, error) {
	is, err := f.Providers.Agreed(ctx, listed, ask)
	return datakeys.Agreement(is), err
}

func (f fileOf) Status() *datakeys.FileStatus {
	is := f.Providers.Status()
	if is == nil {
		return nil
	}
	return &datakeys.FileStatus{Path: is.Path, Hash: is.Hash, Problem: is.Problem, Resources: is.Resources,
		Differ: is.Differ, Away: is.Away}
}

func (s *server) startProviders() {
	o := &provider.Options{File: s.file, Reload: s.file != ""}
	var err error
	s.providers, err = provider.New(
		provider.Config{Options: o, Server: s.name, Logger: slog.New(slog.DiscardHandler), Others: s.others,
			Took: s.showFile})
	if err != nil {
		s.world.t.Fatal(err)
	}
	s.showFile()
}

// showFile lets gossip know of this server's file.
func (s *server) showFile() {
	s.shownFile.Store(s.providers.Digest())
	s.shownKeys.Store(uint32(s.providers.Keys()))
}

func (s *server) others() (all []provider.Other, known bool) {
	for _, o := range s.world.servers {
		if o != s && !o.removed.Load() {
			all = append(all,
				provider.Other{Name: o.name, File: o.shownFile.Load(), Keys: uint16(o.shownKeys.Load()),
					Alive: o.on.Load()})
		}
	}
	return all, true
}

const fileHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"

// fileEntry is one of a file's resources, with keys of secretbox in their order; "identity" is
// that.
func fileEntry(resources string, keys ...string) string {
	text := "- resources: [" + resources + "]\n  providers:\n"
	for _, key := range keys {
		if key == "identity" {
			text += "  - {identity: {}}\n"
			continue
		}
		secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{key[1]}, 32))
		text += fmt.Sprintf("  - {secretbox: {keys: [{name: %s, secret: %s}]}}\n", key, secret)
	}
	return text
}

// give gives a server a file. It is restarted if it had none.
func (s *server) give(content string) {
	s.world.t.Helper()
	restarts := s.file == ""
	if restarts {
		s.file = filepath.Join(s.world.t.TempDir(), "providers.yaml")
	}
	if err := os.WriteFile(s.file, []byte(fileHead+content), 0o600); err != nil {
		s.world.t.Fatal(err)
	}
	if restarts && s.on.Load() {
		s.halt()
		s.start()
	}
}

// take takes the file away, and restarts the server.
func (s *server) take() {
	s.file = ""
	if s.on.Load() {
		s.halt()
		s.start()
	}
}

// took waits until the servers that run have looked at their files.
func took() {
	<-time.After(15 * time.Second)
	synctest.Wait()
}

// giveAll gives all servers a file, one after the other. Each writes, and all read, in between.
func (w *world) giveAll(content string) {
	w.t.Helper()
	for _, s := range w.servers {
		s.give(content)
		took()
		w.writeAll()
		w.readAll()
	}
	w.lead(w.servers[0], 10*time.Second)
}

// writeAll writes an object by each server that runs.
func (w *world) writeAll() {
	w.t.Helper()
	for i, s := range w.servers {
		if s.on.Load() {
			if err := w.write(s, secretKey(i), fmt.Sprintf("hidden by %s at %s", s.name, time.Now()), 0); err != nil {
				w.t.Fatalf("%s cannot write: %v", s.name, err)
			}
		}
	}
}

// readAll reads each object on each server that runs. None may be in clear.
func (w *world) readAll() {
	w.t.Helper()
	for _, s := range w.servers {
		if s.on.Load() {
			w.readsAll(s)
		}
	}
}

func (w *world) readsAll(s *server) {
	w.t.Helper()
	for key, want := range w.model {
		item := w.item(key)
		got, _, err := s.sealerOf(key).TransformFromStorage(w.ctx, item.Value, place(key))
		if err != nil || string(got) != want {
			w.t.Fatalf("%s on %s is %q: %v", key, s.name, got, err)
		}
		if strings.Contains(string(item.Value), "hidden") {
			w.t.Fatalf("%s is in clear", key)
		}
	}
}

// labels are those of all objects.
func (w *world) labels() (all []string) {
	for key := range w.model {
		all = append(all, encryption.Label(w.item(key).Value))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// only checks that all objects are under one key.
func (w *world) only(what, label string) {
	w.t.Helper()
	if got := w.labels(); len(got) != 1 || !strings.HasPrefix(got[0], label) {
		w.t.Fatalf("%s: objects are under %q, want %q", what, got, label)
	}
}

// rewrite does a rewrite to its end.
func (w *world) rewrite(s *server) {
	w.t.Helper()
	w.apply(datakeys.Renew)
	w.comesToRest(s)
}

func (w *world) comesToRest(s *server) {
	w.t.Helper()
	for range 30 {
		w.lead(s, 20*time.Second)
		if is := w.status(s); is.Step == datakeys.AtRest {
			return
		}
	}
	w.t.Fatalf("it does not come to rest: %+v", w.status(s))
}

func (w *world) inUse(s *server, want bool) {
	w.t.Helper()
	if is := w.status(s); is.File == nil && want || is.File != nil && is.File.Writes != want {
		w.t.Fatalf("in use is not %t: %+v", want, is.File)
	}
}

// apart lets a server lead, and checks why it does not take the file into use.
func (w *world) apart(s *server, why string) {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.ctx)
	var leading sync.WaitGroup
	leading.Go(func() { _ = s.manager.Lead(ctx, 1) })
	<-time.After(time.Minute)
	is, progress := w.status(s), s.manager.Progress(w.ctx)
	stop()
	leading.Wait()
	if is.File == nil || !strings.Contains(is.File.Apart, why) || !strings.Contains(progress.Problem, why) {
		w.t.Errorf("want %q: %+v, %+v", why, is.File, progress)
	}
}

func (w *world) refused(s *server, order datakeys.Order, why string) {
	w.t.Helper()
	err := s.manager.Apply(w.ctx, order)
	if _, is := errors.AsType[*datakeys.RefusedError](err); !is || !strings.Contains(err.Error(), why) {
		w.t.Fatalf("%s is not refused for %q: %v", order.Change, why, err)
	}
}

// begunWorld is a world of three servers with data keys and some objects.
func begunWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 1, "s1", "s2", "s3")
	w.begin()
	synctest.Wait()
	w.writeSome("hidden from before")
	return w
}

const (
	own      = "k8s:enc:barque:v1:"
	under1   = "k8s:enc:secretbox:v1:k1"
	under2   = "k8s:enc:secretbox:v1:k2"
	useOfOne = "secrets, configmaps"
)

// TestFileFromBeginToEnd: a file comes to the servers one after the other, gets another key, and
// goes again. All servers read all objects at each moment, and nothing is ever in clear.
func TestFileFromBeginToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1 := w.servers[0]
		for i, s := range w.servers {
			s.give(fileEntry(useOfOne, "k1"))
			took()
			w.lead(s1, 10*time.Second)
			if i < 2 {
				w.only("not all have it", own)
				w.inUse(s1, false)
				w.refused(s1, datakeys.Order{Change: datakeys.Renew}, "differs between servers")
			}
			w.writeAll()
			w.readAll()
		}
		w.inUse(s1, true)
		w.writeAll()
		if got := encryption.Label(w.item(secretKey(0)).Value); got != under1 {
			t.Fatalf("the file is in use, and a write is under %q", got)
		}
		w.rewrite(s1)
		w.only("rewritten", under1)
		w.readAll()
		w.giveAll(fileEntry(useOfOne, "k1", "k2"))
		w.giveAll(fileEntry(useOfOne, "k2", "k1"))
		w.inUse(s1, true)
		w.rewrite(s1)
		w.only("rotated", under2)
		w.giveAll(fileEntry(useOfOne, "k2"))
		w.inUse(s1, true)
		w.readAll()

		// The way back: identity leaves all to the data key.
		w.giveAll(fileEntry(useOfOne, "identity", "k2"))
		w.inUse(s1, true)
		w.refused(s1, datakeys.Order{Change: datakeys.Disable}, "a file of providers is in use")
		w.rewrite(s1)
		w.only("identity is first", own)
		for _, s := range w.servers {
			s.take()
			w.writeAll()
			w.readAll()
		}
		w.lead(s1, 10*time.Second)
		if is := w.status(s1); is.File != nil || is.Other > 0 || is.Clear > 0 {
			t.Fatalf("without the file: %+v", is)
		}
		w.rewrite(s1)
		w.only("without the file", own)
		w.readAll()
		// The resources that the file had named stay encrypted until an operator changes that.
		if is := w.status(s1); !slices.Contains(is.Resources, "configmaps") {
			t.Errorf("%v", is.Resources)
		}
	})
}

// TestFileNeedsAllServers: a file is not taken into use while a server does not run, and stays in
// use when one goes. A rewrite then leaves objects under the file's key.
func TestFileNeedsAllServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1, s3 := w.servers[0], w.servers[2]
		s3.halt()
		for _, s := range w.servers {
			s.give(fileEntry(useOfOne, "k1"))
		}
		took()
		w.apart(s1, "these servers do not run: s3")
		w.inUse(s1, false)
		s3.start()
		took()
		w.lead(s1, 10*time.Second)
		w.inUse(s1, true)
		s3.halt()
		w.writeAll()
		w.rewrite(s1)
		w.only("a server is off", under1)
		w.inUse(s1, true)
	})
}

// TestFileNeedsADataKey: without a data key no file is in use, and servers without it read all.
func TestFileNeedsADataKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2")
		defer w.close()
		for _, s := range w.servers {
			s.give(fileEntry(useOfOne, "k1"))
			w.writeAll()
		}
		took()
		s1 := w.servers[0]
		w.apart(s1, "barque secrets-encrypt enable")
		w.inUse(s1, false)
		w.apply(datakeys.Enable)
		w.comesToRest(s1)
		w.lead(s1, 10*time.Second)
		w.inUse(s1, true)
		w.rewrite(s1)
		w.only("enabled", under1)
		w.readAll()
	})
}

// TestServerThatWasAwayForARotation: a server that comes back with an earlier file, or joins with
// one, writes nothing under its key, and knows that it is blind.
func TestServerThatWasAwayForARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1, s3 := w.servers[0], w.servers[2]
		w.giveAll(fileEntry(useOfOne, "k1"))
		w.rewrite(s1)
		s3.halt()
		for _, s := range w.servers[:2] {
			s.give(fileEntry(useOfOne, "k2", "k1"))
		}
		took()
		w.lead(s1, time.Minute)
		w.inUse(s1, false) // s3 may come back with the earlier one
		w.writeAll()
		w.readAll()
		s3.removed.Store(true)
		w.lead(s1, 10*time.Second)
		w.inUse(s1, true)
		w.rewrite(s1)
		w.only("rotated", under2)
		s3.removed.Store(false) // it joins again
		s3.start()
		took()
		w.writeAll()
		if got := encryption.Label(w.item(secretKey(2)).Value); !strings.HasPrefix(got, own) {
			t.Fatalf("it has written under %q", got)
		}
		w.readsAll(s1)
		if cannot, err := s3.objects().Readable(w.ctx); cannot == nil || err != nil {
			t.Errorf("it takes itself for seeing: %v, %v", cannot, err)
		}
		w.lead(s1, 10*time.Second)
		w.inUse(s1, true)
		w.refused(s1, datakeys.Order{Change: datakeys.Renew}, "differs between servers")
		s3.give(fileEntry(useOfOne, "k2", "k1"))
		took()
		w.rewrite(s1)
		w.only("mended", under2)
		w.readAll()
	})
}

// TestNewerFileEndsTheUse: a server whose file is another one than the one in use does not write by
// it, from the very first write, whatever gossip knows. Nor does one without the file, and the
// resources that the file alone names are encrypted there, too.
func TestNewerFileEndsTheUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		w.giveAll(fileEntry("configmaps, secrets", "k1"))
		s2, s3 := w.servers[1], w.servers[2]
		s2.give(fileEntry("configmaps, secrets", "k2", "k1"))
		s3.take()
		digest := s2.shownFile.Load()
		took()
		s2.shownFile.Store(digest) // gossip does not know it yet
		s3.shownFile.Store(digest)
		for _, s := range []*server{s2, s3} {
			sealed, _, err := s.transformers.Load().TransformerForResource(
				schema.GroupResource{Resource: "configmaps"}).(storage.Sealer).Seal(w.ctx, []byte("x"),
				place("/registry/configmaps/ns/c"))
			if err != nil || !strings.HasPrefix(string(sealed), own) {
				t.Errorf("%s writes %q, %v", s.name, sealed, err)
			}
		}
	})
}

// TestFileThatLacksAKey: the same wrong file on all servers is not taken into use, and is no reason
// to take any of them for healthy.
func TestFileThatLacksAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1 := w.servers[0]
		w.giveAll(fileEntry(useOfOne, "k1"))
		w.rewrite(s1)
		for what, wrong := range map[string]string{"another key": fileEntry(useOfOne, "k2"),
			"no provider": fileEntry(useOfOne, "identity"), "no resource": fileEntry("configmaps", "k1")} {
			for _, s := range w.servers {
				s.give(wrong)
			}
			took()
			w.apart(s1, "does not decrypt all objects")
			w.inUse(s1, false)
			for _, s := range w.servers {
				if cannot, _ := s.objects().Readable(w.ctx); cannot == nil {
					t.Errorf("%s: %s is healthy", what, s.name)
				}
			}
			if got := w.labels(); len(got) != 1 || got[0] != under1 {
				t.Fatalf("%s: objects are under %q", what, got)
			}
		}
		for _, s := range w.servers { // without a file at all
			s.take()
		}
		w.apart(s1, "give all servers the file again")
		w.giveAllBlind(fileEntry(useOfOne, "k1"))
		w.inUse(s1, true)
		w.readAll()
	})
}

// giveAllBlind is giveAll for servers that cannot read meanwhile.
func (w *world) giveAllBlind(content string) {
	for _, s := range w.servers {
		s.give(content)
	}
	took()
	w.lead(w.servers[0], 10*time.Second)
}

// TestUnsettledServers: while servers do not agree, a leader rewrites nothing and finds no disk
// clean, also in a change that has begun before. The status has the reason.
func TestUnsettledServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1, s2 := w.servers[0], w.servers[1]
		one, two := fileEntry(useOfOne, "k1"), fileEntry(useOfOne, "k1", "k2")
		w.giveAll(one)
		w.rewrite(s1)
		w.apply(datakeys.Rotate)
		s2.give(two)
		took()
		w.lead(s1, time.Minute)
		if is := w.status(s1); is.Step != datakeys.Rewrite ||
			!slices.ContainsFunc(is.Waiting, func(why string) bool { return strings.Contains(why, "differs") }) {
			t.Errorf("an unsettled leader is at %+v", is)
		}
		s2.give(one)
		took()
		for w.status(s1).Step == datakeys.Rewrite {
			w.lead(s1, time.Second)
		}
		s2.give(two)
		took()
		w.lead(s1, 10*time.Minute)
		if is := w.status(s1); is.Step != datakeys.Clean {
			t.Errorf("an unsettled leader goes on: %+v", is)
		}
		for _, s := range w.servers {
			s.give(two)
		}
		took()
		w.comesToRest(s1)
		w.inUse(s1, true) // it was taken into use on the way
		w.readAll()
	})
}

func (w *world) format() int {
	w.t.Helper()
	var is struct{ Format int }
	if err := json.Unmarshal(w.item(stateKey).Value, &is); err != nil {
		w.t.Fatal(err)
	}
	return is.Format
}

// change makes a change, and waits for its end.
func (w *world) change(s *server, order datakeys.Order) {
	w.t.Helper()
	if err := s.manager.Apply(w.ctx, order); err != nil {
		w.t.Fatal(err)
	}
	w.comesToRest(s)
}

// TestExceptionsEnd: an exception of an earlier file or order ends with a file that encrypts its
// resource, for servers without the file as well, on the way back, and in a restored backup. The
// way to an earlier version leaves a state that it reads.
func TestExceptionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1, s2 := w.servers[0], w.servers[1]
		w.giveAllBlind(fileEntry("configmaps", "identity") + fileEntry("'*.*'", "k1"))
		w.inUse(s1, true)
		write := func(s *server, want string) {
			t.Helper()
			if err := w.write(s, configKey(0), "hidden by "+s.name, 0); err != nil {
				t.Fatal(err)
			}
			if got := encryption.Label(w.item(configKey(0)).Value); !strings.HasPrefix(got, want) ||
				want == "" && got != "" {
				t.Fatalf("a ConfigMap is under %q, want %q", got, want)
			}
		}
		write(s1, "")
		w.giveAllBlind(fileEntry("'*.*'", "k1"))
		w.inUse(s1, true)
		if is := w.status(s1); len(is.Except) > 0 {
			t.Errorf("exceptions of a wildcard that encrypts all: %q", is.Except)
		}
		w.rewrite(s1)
		w.only("rewritten", under1)
		s2.take()
		write(s2, own)
		s2.give(fileEntry("'*.*'", "k1"))
		took()
		w.giveAll(fileEntry("'*.*'", "identity", "k1"))
		w.inUse(s1, true)
		w.rewrite(s1)
		w.only("the way back", own)
		for _, s := range w.servers {
			s.take()
		}
		w.lead(s1, 10*time.Second)
		w.only("without the file", own)
		b := w.backup()
		w.change(s1, datakeys.Order{Change: datakeys.Enable, Drop: []string{"configmaps"}})
		write(s1, "")
		w.restore(b)
		w.lead(s1, 10*time.Second)
		w.comesToRest(s1)
		w.only("restored", own)
		if is := w.format(); is != 2 {
			t.Errorf("the format with a wildcard is %d", is)
		}
		b = w.backup()
		w.change(s1, datakeys.Order{Change: datakeys.Enable, Drop: []string{"configmaps"}})
		w.change(s1, datakeys.Order{Change: datakeys.Enable, Drop: []string{"*.*"}})
		if is := w.status(s1); w.format() != 1 || len(is.Except) > 0 ||
			!slices.Equal(is.Resources, []string{"secrets"}) {
			t.Errorf("without the wildcard: format %d, %q without %q", w.format(), is.Resources, is.Except)
		}
		w.restore(b)
		w.lead(s1, 10*time.Second)
		w.comesToRest(s1)
		w.change(s1, datakeys.Order{Change: datakeys.Disable})
		if is := w.status(s1); w.format() != 1 || len(is.Except) > 0 ||
			!slices.Equal(is.Resources, []string{"secrets"}) {
			t.Errorf("disabled: format %d, %q without %q", w.format(), is.Resources, is.Except)
		}
	})
}

// TestFileInTheState: a state with a file is of a format that earlier versions refuse, and without
// one of the format that they read.
func TestFileInTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		if is := w.format(); is != 1 {
			t.Errorf("before: %d", is)
		}
		w.giveAll(fileEntry("configmaps", "identity") + fileEntry("'*.*'", "k1"))
		if is := w.format(); is != 2 {
			t.Errorf("with a file: %d", is)
		}
		s1 := w.servers[0]
		if is := w.status(s1); !slices.Contains(is.Resources, "*.*") ||
			!slices.Equal(is.Except, []string{"configmaps"}) {
			t.Errorf("%+v", is)
		}
		seal := func(s *server) string {
			sealed, _, err := s.transformers.Load().TransformerForResource(
				schema.GroupResource{Resource: "configmaps"}).(storage.Sealer).Seal(w.ctx, []byte("plain"),
				place("/registry/configmaps/ns/c"))
			if err != nil {
				t.Fatal(err)
			}
			return string(sealed)
		}
		if got := seal(s1); got != "plain" {
			t.Errorf("what identity alone leaves alone is %q", got)
		}
		w.refused(s1, datakeys.Order{Change: datakeys.Enable, Drop: []string{"secrets"}},
			"the file of providers that is in use encrypts secrets")
	})
}

// TestRestoredFile: a backup from before a file came, or from under an earlier key of it, is read,
// and ends under the file in use.
func TestRestoredFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1 := w.servers[0]
		backups := map[string]backup{"before the file": w.backup()}
		w.giveAll(fileEntry(useOfOne, "k1"))
		w.rewrite(s1)
		backups["under the first key"] = w.backup()
		w.giveAll(fileEntry(useOfOne, "k1", "k2"))
		w.giveAll(fileEntry(useOfOne, "k2", "k1"))
		w.rewrite(s1)
		for what, b := range backups {
			w.restore(b)
			w.lead(s1, 10*time.Second)
			w.comesToRest(s1)
			w.inUse(s1, true)
			w.only(what, under2)
			w.readAll()
		}
		// And into a cluster that lacks the earlier key: the change waits, and loses nothing.
		w.giveAll(fileEntry(useOfOne, "k2"))
		w.restore(backups["under the first key"])
		w.lead(s1, 5*time.Minute+retried/2) // between two attempts
		if is := w.status(s1); is.Step != datakeys.Rewrite ||
			!slices.ContainsFunc(is.Waiting, func(why string) bool { return strings.Contains(why, "cannot be read") }) {
			t.Errorf("%+v", is)
		}
		w.giveAllBlind(fileEntry(useOfOne, "k2", "k1"))
		w.comesToRest(s1)
		w.only("mended", under2)
		w.readAll()
	})
}

// TestUnknownResources: objects of a kind that the server does not serve stay as they are under a
// provider, and go with the data key.
func TestUnknownResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begunWorld(t)
		defer w.close()
		s1 := w.servers[0]
		w.giveAll(fileEntry("'*.*'", "k1"))
		values := map[string]string{"/registry/unknown/ns/a": under1 + ":x", "/registry/unknown/ns/b": "clear"}
		for key, value := range values {
			if _, err := w.store.Put(w.ctx, key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		sealed, err := s1.transformers.Load().Seal(w.ctx, w.status(s1).Keys[0].ID, []byte("old"),
			place("/registry/unknown/ns/c"))
		if err == nil {
			_, err = w.store.Put(w.ctx, "/registry/unknown/ns/c", sealed)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.apply(datakeys.Rotate)
		w.comesToRest(s1)
		for key, value := range values {
			if got := w.item(key).Value; string(got) != value {
				t.Errorf("%s is %q", key, got)
			}
		}
		key := w.status(s1).Keys[0].ID
		if got := encryption.KeyOf(w.item("/registry/unknown/ns/c").Value); got != key || len(w.status(s1).Keys) < 1 {
			t.Errorf("it is under %s, want %s", got, key)
		}
	})
}

// TestFilesAtRandom: files come, change and go, keys change, servers are off for any time, leaders
// are killed at any moment, and slow writers write. Files have wildcards and exceptions. A server
// with the file in use reads all, nothing is lost, and nothing that was encrypted is ever in clear.
func TestFilesAtRandom(t *testing.T) {
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed, "s1", "s2", "s3")
				defer w.close()
				w.begin()
				synctest.Wait()
				w.writeSome("hidden first")
				ctx, stop := context.WithCancel(w.ctx)
				defer stop()
				var writing sync.WaitGroup
				for i := range 3 {
					rnd := rand.New(rand.NewPCG(seed, uint64(i)))
					s := w.servers[i]
					writing.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							by := s
							if !by.on.Load() {
								by = w.servers[0]
							}
							key := secretKey(i + 3*rnd.IntN(6))
							if rnd.IntN(3) == 0 {
								key = configKey(i + 3*rnd.IntN(6))
							}
							if err := w.write(by, key, fmt.Sprintf("hidden %d, %d", i, n),
								time.Duration(rnd.Int64N(int64(20*time.Second)))); err != nil {
								t.Errorf("write: %v", err)
								return
							}
						}
					})
				}
				keys, enciphered := []string{"k1"}, map[string]bool{}
				for step := range *kills {
					w.filesTurn(&keys, enciphered, step)
				}
				for _, s := range w.servers {
					if !s.on.Load() {
						s.start()
					}
				}
				stop()
				writing.Wait()
				all := fileEntry("'*.*'", "k9", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8")
				w.giveAllBlind(all)
				s := w.servers[w.rnd.IntN(3)]
				w.comesToRest(s)
				w.lead(s, 10*time.Second)
				w.inUse(s, true)
				w.rewrite(s)
				w.only("at the end", "k8s:enc:secretbox:v1:k9")
				w.readAll()
			})
		})
	}
}

// filesTurn gives some server the newest file, and lets a leader work for a while.
func (w *world) filesTurn(keys *[]string, enciphered map[string]bool, step int) {
	if w.rnd.IntN(2) == 0 && len(*keys) < 8 { // in front at once: servers with the file of before do not have it
		*keys = slices.Insert(*keys, 0, fmt.Sprintf("k%d", len(*keys)+1))
	}
	order := *keys
	if w.rnd.IntN(3) == 0 {
		order = slices.Insert(slices.Clone(order), 0, "identity")
	}
	content := [...]string{
		fileEntry("secrets", order...),
		fileEntry("secrets, configmaps", order...),
		fileEntry("'*.*'", order...),
		fileEntry("configmaps", "identity") + fileEntry("'*.*'", order...),
		fileEntry("secrets", order...) + fileEntry("'*.'", "identity"),
	}[w.rnd.IntN(5)]
	for _, s := range w.servers {
		if w.rnd.IntN(3) > 0 {
			s.give(content)
		}
	}
	if s := w.servers[2]; w.rnd.IntN(3) == 0 {
		if s.on.Load() {
			s.halt()
		} else {
			s.start()
		}
	}
	change := []datakeys.Change{datakeys.Rotate, datakeys.Renew, datakeys.Enable}[step%3]
	if err := w.servers[0].manager.Apply(w.ctx, datakeys.Order{Change: change}); err != nil {
		if _, refused := errors.AsType[*datakeys.RefusedError](err); !refused {
			w.t.Fatal(err)
		}
	}
	w.lead(w.servers[w.rnd.IntN(2)], time.Duration(w.rnd.Int64N(int64(30*time.Second))))
	view, err := w.store.View(w.ctx, raftstore.ViewOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	view.Ascend("/registry/", "", func(item raftstore.Item) bool {
		if encryption.Enciphered(item.Value) {
			enciphered[item.Key] = true
		} else if enciphered[item.Key] || strings.HasPrefix(item.Key, "/registry/secrets/") {
			w.t.Errorf("%s is in clear", item.Key)
		}
		return true
	})
	for _, s := range w.servers {
		if is := w.status(s); s.on.Load() && is.File != nil && is.File.Writes {
			for key, want := range w.modelNow() {
				item, _ := view.Get(key)
				if got, _, err := s.sealerOf(key).TransformFromStorage(w.ctx, item.Value, place(key)); err != nil {
					w.t.Errorf("%s, with the file in use, reads %q as %q, want %q: %v", s.name, key, got, want, err)
				}
			}
		}
	}
}

func (w *world) modelNow() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make(map[string]string, len(w.model))
	for key, value := range w.model {
		all[key] = value
	}
	return all
}

// item is that of a key in the store.
func (w *world) item(key string) raftstore.Item {
	w.t.Helper()
	view, err := w.store.View(w.ctx, raftstore.ViewOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	item, _ := view.Get(key)
	return item
}
