package node

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/membership/datakeys"
)

// providersFile returns the content of a file for Secrets, with the providers in their order.
func providersFile(providers ...string) string {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"
	for _, p := range providers {
		text += "  - " + p + "\n"
	}
	return text
}

func secretbox(name string, b byte) string {
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), 32)))
	return fmt.Sprintf("{secretbox: {keys: [{name: %s, secret: %s}]}}", name, key)
}

// withFile restarts a server with a file of providers.
func (p *process) withFile(t *testing.T, path string) *process {
	t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.ended
	o := p.order
	o.Join, o.Token, o.Providers = "", "", &provider.Options{File: path, Reload: path != ""}
	return p.space.startProcess(t, o)
}

func putFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFileOfProviders: a file comes to the servers of a running cluster one after the other, and no
// Secret is unreadable meanwhile. A rewrite then leaves no value of before on any disk. A server
// with another file says so, takes nothing for absent, and is mended without a restart. Nothing is
// lost or in clear on the way back.
func TestFileOfProviders(t *testing.T) {
	all := startThree(t, "")
	want := map[string]string{"born": all[0].putSecret(t, "born")}
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
		}
	}
	status := func(what string, right func(*datakeys.Status) bool) {
		t.Helper()
		for _, p := range all {
			until(t, patience, what+" on "+p.order.Name, func(ctx context.Context) error {
				is, err := p.encryption(ctx, "")
				if err == nil && !right(&is.Status) {
					err = fmt.Errorf("%+v, file %+v", is.Status, is.File)
				}
				return err
			})
		}
	}
	under := func(s *datakeys.Status, id string) (n int) {
		for _, k := range s.Keys {
			if strings.HasPrefix(k.ID, id) {
				n += k.Objects
			}
		}
		return n
	}
	writes := func(s *datakeys.Status) bool { return s.File != nil && s.File.Writes }

	files := make([]string, len(all))
	for i := range all {
		files[i] = filepath.Join(t.TempDir(), "providers.yaml")
		putFile(t, files[i], providersFile(secretbox("k1", 'a')))
	}
	for i := range all {
		all[i] = all[i].withFile(t, files[i])
		until(t, patience, all[i].order.Name+" is ready again", all[i].ready)
		name := fmt.Sprintf("while-%d", i)
		want[name] = all[i].putSecret(t, name)
		check(name)
		if i > 0 {
			continue
		}
		until(t, patience, "a rewrite is refused", func(ctx context.Context) error {
			is, err := all[0].encryption(ctx, datakeys.Renew)
			if !is.Refused || !strings.Contains(is.Error, "differs between servers") {
				return fmt.Errorf("it is not: %+v, %w", is, err)
			}
			return nil
		})
	}
	status("all have the file", writes)
	want["late"] = all[0].putSecret(t, "late")
	all[0].change(t, datakeys.Renew)
	status("all are under the provider", func(s *datakeys.Status) bool {
		return under(s, "k8s:enc:secretbox:v1:k1") >= len(want) && under(s, "k8s:") == under(s, "") && s.Clear == 0
	})
	check("after the rewrite")

	// s3 gets another file, and then the right one.
	off := all[2]
	putFile(t, files[2], providersFile(secretbox("k2", 'b')))
	all[2] = off.withFile(t, files[2])
	until(t, patience, "s3 cannot read", func(ctx context.Context) error {
		_, err := all[2].client().CoreV1().Secrets("default").Get(ctx, "late", metav1.GetOptions{})
		switch {
		case err == nil || apierrors.IsNotFound(err):
			t.Fatalf("a Secret that it cannot decrypt: %v", err)
		case !strings.Contains(err.Error(), "/registry/secrets/default/late") ||
			!strings.Contains(err.Error(), files[2]):
			return err
		}
		return nil
	})
	until(t, patience, "s3 is not ready", func(ctx context.Context) error {
		data, err := all[2].client().Discovery().RESTClient().Get().AbsPath("/readyz/encryption-file").DoRaw(ctx)
		if err == nil {
			err = errors.New("it is")
		} else if strings.Contains(string(data), "this server cannot read all objects: read /registry/secrets/") {
			return nil
		}
		return fmt.Errorf("%w: %s", err, data)
	})
	until(t, patience, "the status names the server", func(ctx context.Context) error {
		is, err := all[0].encryption(ctx, "")
		if err == nil && (is.File == nil || len(is.File.Differ) == 0) {
			err = errors.New("the files do not differ")
		}
		return err
	})
	// What it writes meanwhile is under the data key, which all read.
	want["apart"] = all[2].putSecret(t, "apart")
	for _, p := range all {
		until(t, patience, p.order.Name+" reads what s3 has written meanwhile", func(ctx context.Context) error {
			_, err := p.client().CoreV1().Secrets("default").Get(ctx, "apart", metav1.GetOptions{})
			return err
		})
	}
	putFile(t, files[2], providersFile(secretbox("k1", 'a')))
	status("all have the file again", writes)
	check("mended")
	until(t, patience, "s3 is ready again", all[2].ready)

	// The leader gets a wrong file, as by a mistake in a template.
	leads := func() (at int) {
		until(t, patience, "a leader", func(ctx context.Context) error {
			for i, p := range all {
				if is, err := p.metric(ctx, "barque_store_is_leader"); err == nil && is == 1 {
					at = i
					return nil
				}
			}
			return errors.New("no server says that it leads")
		})
		return at
	}
	wrong := leads()
	putFile(t, files[wrong], providersFile(secretbox("k2", 'b')))
	until(t, patience, "another server leads, which reads all", func(context.Context) error {
		if now := leads(); now == wrong {
			return fmt.Errorf("%s leads, and has a wrong file", all[now].order.Name)
		}
		return nil
	})
	putFile(t, files[wrong], providersFile(secretbox("k1", 'a')))
	until(t, patience, "the former leader is ready again", all[wrong].ready)
	status("the leader has the file again", writes)

	// The way back, on which nothing is in clear.
	for _, path := range files {
		putFile(t, path, providersFile("{identity: {}}", secretbox("k1", 'a')))
	}
	status("identity leaves all to the data key",
		func(s *datakeys.Status) bool { return writes(s) && s.File.Resources["secrets"] == "identity" })
	all[0].change(t, datakeys.Renew)
	status("all are under the data key", func(s *datakeys.Status) bool {
		return under(s, "k8s:") == 0 && under(s, "") >= len(want) && s.Clear == 0
	})
	for i := range all {
		all[i] = all[i].withFile(t, "")
		until(t, patience, all[i].order.Name+" is ready without a file", all[i].ready)
	}
	status("no file is in use", func(s *datakeys.Status) bool { return s.File == nil && s.Other == 0 })
	check("at the end")
	for _, p := range all {
		for name, text := range want {
			if found := p.found(t, text); len(found) > 0 {
				t.Errorf("%s is in clear on %s in %q", name, p.order.Name, found)
			}
		}
	}
}
