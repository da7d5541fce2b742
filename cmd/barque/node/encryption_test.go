package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/register"
	"github.com/barque/barque/raftstore/snapshot"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// encryption asks a server for the state of the encryption, or for a change.
func (p *process) encryption(ctx context.Context, change datakeys.Change) (*adminapi.EncryptionAnswer, error) {
	request := p.client().Discovery().RESTClient().Get()
	if change != "" {
		request = p.client().Discovery().RESTClient().Post().Param("change", string(change))
	}
	data, err := request.AbsPath(adminapi.EncryptionPath).DoRaw(ctx)
	answer := new(adminapi.EncryptionAnswer)
	if broken := json.Unmarshal(data, answer); err == nil {
		err = broken
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	return answer, err
}

// change begins a change of the encryption, and waits for its end.
func (p *process) change(t *testing.T, change datakeys.Change) {
	t.Helper()
	until(t, patience, string(change), func(ctx context.Context) error {
		_, err := p.encryption(ctx, change)
		return err
	})
	p.atRest(t)
}

func (p *process) atRest(t *testing.T) {
	t.Helper()
	until(t, patience, "the end of a change of the data keys", func(ctx context.Context) error {
		is, err := p.encryption(ctx, "")
		if err == nil && (is.Step != datakeys.AtRest || is.Problem != "") {
			err = fmt.Errorf("%+v", is.Status)
		}
		for _, s := range is.Servers {
			if err == nil && !s.Cleaned {
				err = fmt.Errorf("%+v", is.Status)
			}
		}
		return err
	})
}

// found returns the files of a server that have the text: as they are, and what its snapshots
// unfold to.
func (p *process) found(t *testing.T, text string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(p.order.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte(text)) {
			files = append(files, path)
		} else if d.Name() == "state.bin" && inSnapshot(data, text) {
			files = append(files, path+" (unfolded)")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// inSnapshot tells whether a snapshot has the text in its items or its history.
func inSnapshot(data []byte, text string) (found bool) {
	r, err := snapshot.NewReader(bytes.NewReader(data))
	if err != nil {
		return false
	}
	defer r.Close()
	_ = r.Items(func(item *kv.Item) { found = found || bytes.Contains(item.Value, []byte(text)) })
	_ = r.History(func(u kv.Undo) error {
		for _, item := range u.Before {
			found = found || bytes.Contains(item.Value, []byte(text))
		}
		return nil
	})
	return found
}

// secrets of a test are random, so that nothing else is taken for them.
func (p *process) putSecret(t *testing.T, name string) (text string) {
	t.Helper()
	text = "plain-" + rand.Text()
	until(t, patience, "a Secret", func(ctx context.Context) error {
		_, err := p.client().CoreV1().Secrets("default").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": text}},
			metav1.CreateOptions{})
		return err
	})
	return text
}

// TestSecretsOnDisk: in a new cluster no Secret is ever on a disk in clear. In one that was not
// encrypted, none is left once it is, whatever has become of the Secret. All keep their content,
// also if each leader of a change is killed, and a server was off meanwhile.
func TestSecretsOnDisk(t *testing.T) {
	all := startThree(t, "")
	first := all[0]
	want := map[string]string{}
	check := func(what string) {
		t.Helper()
		for _, p := range all {
			for name, text := range want {
				until(t, patience, what+": "+name+" on "+p.order.Name, func(ctx context.Context) error {
					s, err := p.client().CoreV1().Secrets("default").Get(ctx, name, metav1.GetOptions{})
					if err == nil && string(s.Data["k"]) != text {
						t.Fatalf("%s: %s is %q on %s", what, name, s.Data["k"], p.order.Name)
					}
					return err
				})
			}
			list, err := p.client().CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) < len(want) {
				t.Errorf("%s: %s lists %d Secrets, %v", what, p.order.Name, len(list.Items), err)
			}
		}
	}
	clean := func(what string, texts ...string) {
		t.Helper()
		for _, p := range all {
			for _, text := range texts {
				if files := p.found(t, text); len(files) > 0 {
					t.Errorf("%s: %s has a Secret in clear in %q", what, p.order.Name, files)
				}
			}
		}
	}

	want["born"] = first.putSecret(t, "born")
	map1 := "plain-" + rand.Text()
	if _, err := first.client().CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"k": map1}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	check("new")
	for _, p := range all {
		if len(p.found(t, map1)) == 0 {
			t.Fatalf("a ConfigMap is not found on %s: the search is no good", p.order.Name)
		}
	}
	clean("a new cluster", want["born"])
	var format struct {
		Format    int
		Encrypted bool
	}
	if data, err := os.ReadFile(filepath.Join(first.order.DataDir, "node.json")); err != nil ||
		json.Unmarshal(data, &format) != nil || format.Format != 6 || !format.Encrypted {
		t.Errorf("versions that cannot read encrypted objects are not kept from the data directory: %+v, %v", format,
			err)
	}

	first.change(t, datakeys.Disable)
	want["clear"] = first.putSecret(t, "clear")
	gone := first.putSecret(t, "gone")
	if err := first.client().CoreV1().Secrets("default").Delete(t.Context(), "gone",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	check("in clear")
	for _, p := range all {
		if len(p.found(t, want["clear"])) == 0 || len(p.found(t, gone)) == 0 {
			t.Fatalf("a Secret in clear is not found on %s: the search is no good", p.order.Name)
		}
	}
	first.change(t, datakeys.Enable)
	clean("after enable", want["clear"], want["born"], gone)
	check("after enable")

	// s3 is off, and each leader dies soon.
	off := all[2]
	off.signal(syscall.SIGKILL)
	<-off.ended
	all = all[:2]
	until(t, patience, "rotate", func(ctx context.Context) error {
		_, err := first.encryption(ctx, datakeys.Rotate)
		return err
	})
	for range 3 {
		for i, p := range all {
			p.signal(syscall.SIGKILL)
			<-p.ended
			o := p.order
			o.Join, o.Token = "", ""
			all[i] = p.space.startProcess(t, o)
			until(t, patience, o.Name+" is ready again", all[i].ready)
		}
	}
	first = all[0]
	until(t, patience, "the end of the rotation", func(ctx context.Context) error {
		is, err := first.encryption(ctx, "")
		if err == nil && (is.Step != datakeys.AtRest || len(is.Keys) != 1) {
			err = fmt.Errorf("%+v", is.Status)
		}
		return err
	})
	want["later"] = first.putSecret(t, "later")
	o := off.order
	o.Join, o.Token = "", ""
	all = append(all, off.space.startProcess(t, o))
	until(t, patience, "s3 is ready again", all[2].ready)
	first.atRest(t)
	check("after rotate")
	clean("after rotate", want["clear"], want["born"], want["later"], gone)
}

// strangersKey replaces the key in the store of a server that is off by the same one, sealed with
// the key of a CA that the cluster does not have, and removes the server's own keys.
func (p *process) strangersKey(t *testing.T) (id string, own []byte) {
	t.Helper()
	file := credentials.DataKeysFile(p.order.DataDir)
	own, err := os.ReadFile(file)
	var held struct {
		Keys []struct {
			ID  string
			Key []byte
		}
	}
	if err = cmp.Or(err, json.Unmarshal(own, &held), os.Remove(file)); err != nil || len(held.Keys) != 1 {
		t.Fatalf("the server's own keys: %d of them, %v", len(held.Keys), err)
	}
	id = held.Keys[0].ID
	stranger, err := pki.NewAuthority("another", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := stranger.Seal("barque data key v1", held.Keys[0].Key, []byte(id))
	if err != nil {
		t.Fatal(err)
	}
	record, err := enroll.Load(p.order.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	host := new(memnet.Network).Host(fmt.Sprintf("%s:%d", p.order.NodeIPs[0], p.order.PeerPort))
	store, err := raftstore.Open(
		raftstore.Config{Name: p.order.Name, Dir: enroll.StoreDir(p.order.DataDir), ClusterID: record.Cluster.ID,
			Stream: host, RetryFor: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	at := register.New(store, dataKeysKey)
	until(t, patience, "another seal in the store", func(ctx context.Context) error {
		value, revision, err := at.Get(ctx)
		if err != nil {
			return err
		}
		var state map[string]any
		if err := json.Unmarshal(value, &state); err != nil {
			return err
		}
		key := state["keys"].([]any)[0].(map[string]any)
		key["sealed"], key["ca"] = sealed, stranger.Digest()
		if value, err = json.Marshal(state); err != nil {
			return err
		}
		return at.Put(ctx, value, revision, 0)
	})
	// Without a snapshot the server reads the seal of before in its log when it starts, and so has
	// the key.
	if err := errors.Join(store.Snapshot(), store.Close(), host.Close()); err != nil {
		t.Fatal(err)
	}
	return id, own
}

// TestServerWithoutTheKey: a server that cannot open the key of its objects is not ready, and says
// why. It reads, writes, overwrites and deletes none of them, and no change goes on. With the key,
// all of them are as they were, and a rotation loses and doubles none.
func TestServerWithoutTheKey(t *testing.T) {
	s := newSpace(t)
	p := s.startProcess(t, newOrder(t, 0, ""))
	until(t, patience, "s1 is ready", p.ready)
	secrets := func() typedcorev1.SecretInterface { return p.client().CoreV1().Secrets("default") }
	for i := range 20 {
		p.putSecret(t, fmt.Sprintf("s%d", i))
	}
	contents := func() map[string]string {
		t.Helper()
		list, err := secrets().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, is := range list.Items {
			all[is.Name] = string(is.UID) + string(is.Data["k"])
		}
		if len(all) != len(list.Items) {
			t.Errorf("%d Secrets have %d names", len(list.Items), len(all))
		}
		return all
	}
	want := contents()
	stop := func() {
		t.Helper()
		p.signal(syscall.SIGTERM)
		<-p.ended
	}

	stop()
	id, own := p.strangersKey(t)
	p = s.startProcess(t, p.order)
	until(t, patience, "s1 says that it lacks the key", func(ctx context.Context) error {
		data, err := p.client().Discovery().RESTClient().Get().AbsPath("/readyz/encryption").DoRaw(ctx)
		if err == nil {
			t.Fatalf("it is ready without the key: %s", data)
		}
		if !strings.Contains(string(data), "data key "+id+" cannot be opened") {
			return fmt.Errorf("%w: %s", err, data)
		}
		return nil
	})
	if p.ready(t.Context()) == nil {
		t.Error("it is ready, and cannot read its objects")
	}
	fails := func(what string, do func(ctx context.Context) error) {
		t.Helper()
		until(t, patience, what, func(ctx context.Context) error {
			err := do(ctx)
			if err == nil {
				t.Fatalf("%s works without the key", what)
			}
			if !strings.Contains(err.Error(), id) { // the API is about to start
				return err
			}
			return nil
		})
	}
	fails("get", func(ctx context.Context) error {
		_, err := secrets().Get(ctx, "s1", metav1.GetOptions{})
		return err
	})
	fails("list", func(ctx context.Context) error {
		_, err := secrets().List(ctx, metav1.ListOptions{})
		return err
	})
	fails("create", func(ctx context.Context) error {
		_, err := secrets().Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
			metav1.CreateOptions{})
		return err
	})
	fails("update", func(ctx context.Context) error {
		_, err := secrets().Update(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s1"}},
			metav1.UpdateOptions{})
		return err
	})
	fails("delete", func(ctx context.Context) error { return secrets().Delete(ctx, "s1", metav1.DeleteOptions{}) })
	until(t, patience, "the status has the reason", func(ctx context.Context) error {
		is, err := p.encryption(ctx, "")
		if err == nil && !strings.Contains(is.Problem, id) {
			err = fmt.Errorf("%+v", is.Status)
		}
		return err
	})

	// No informer of Secrets is ever synced here, and it is never ready, for which all else waits.
	until(t, patience, "s1 looks for another server to lead", func(context.Context) error {
		if !strings.Contains(p.log.String(), "leads although it cannot read all objects") {
			return errors.New("it does not")
		}
		return nil
	})

	stop()
	if err := os.WriteFile(credentials.DataKeysFile(p.order.DataDir), own, 0o600); err != nil {
		t.Fatal(err)
	}
	p = s.startProcess(t, p.order)
	until(t, patience, "s1 is ready with the key", p.ready)
	if got := contents(); !maps.Equal(got, want) {
		t.Errorf("with the key, %v, want %v", got, want)
	}
	p.change(t, datakeys.Rotate)
	if got := contents(); !maps.Equal(got, want) {
		t.Errorf("after the rotation, %v, want %v", got, want)
	}
	if is, err := p.encryption(t.Context(), ""); err != nil || len(is.Keys) != 1 || is.Keys[0].ID == id ||
		is.Keys[0].Objects < len(want) || is.Clear > 0 {
		t.Errorf("%+v, %v", is.Status, err)
	}
}
