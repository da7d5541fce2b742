package clustertest

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/upgrade"
	"github.com/barque/barque/upgrade/release"
)

// nextVariable names a barque of this tree with another version. `make upgrade-command` builds it.
const nextVariable = "BARQUE_NEXT"

// A cluster is upgraded by `barque upgrade` while objects are written. Programs that are broken in
// any way are taken back. The leader is killed in the middle. No write fails twice, and no
// container is restarted.
func TestUpgradeCommand(t *testing.T) {
	needs.AllTests(t)
	next := os.Getenv(nextVariable)
	if next == "" {
		needs.Missing(t, "a barque of another version ("+nextVariable+"; make upgrade-command)", "barque upgrade")
	}
	s := NewSpace(t, Start(t, Options{Agents: 1}))
	s.Apply(staying(hello("hello", 4, "nowhere")))
	s.K("rollout", "status", "deployment/hello", "--timeout=3m")
	containers := s.containers("app=hello")
	servers, err := s.Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &rolling{Space: s, servers: servers}
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for i := range 3 {
		writing.Go(func() { r.write(ctx, i) }) // ends with ctx
	}
	defer writing.Wait()
	defer stop()
	u := &upgradeByCommand{Space: s, first: versionOf(t, "")}
	if u.first == "" {
		t.Fatal("the program under test has no version")
	}

	s.Run("unsigned", func(s *Space) {
		result := u.run(s, "--to", next, "--yes")
		if result.Code != 4 || !strings.Contains(said(result), "--unsigned") {
			s.Errorf("exit code %d: %s", result.Code, said(result))
		}
	})
	s.Run("dry run", func(s *Space) {
		out := s.Barque(s, "upgrade", "--to", next, "--unsigned", "--dry-run")
		if !strings.Contains(out, "restart s") || !strings.Contains(out, "restart a1") {
			s.Errorf("the plan is:\n%s", out)
		}
		u.in(s, u.first)
	})
	for name, c := range map[string]struct{ script, why string }{
		"exits":         {"exit 7", "exit status 7"},
		"hangs":         {"exec sleep 1000000", "not ready in time"},
		"wrong version": {"exit 7", "is of version"},
	} {
		s.Run(name, func(s *Space) {
			version := u.first + "." + strings.ReplaceAll(name, " ", "-")
			says := version
			if name == "wrong version" {
				says = "v0.1.0"
			}
			archive := scriptRelease(s, version, says, c.script)
			result := u.run(s, "--to", archive, "--unsigned", "--yes", "--ready-timeout", "10s", "--verify", "2s")
			if result.Code != 1 || !strings.Contains(said(result), c.why) {
				s.Errorf("exit code %d, want the reason %q: %s", result.Code, c.why, said(result))
			}
			u.in(s, u.first)
			status := said(s.BarqueResult(s.Context(), "cluster", "status"))
			if !strings.Contains(status, "has stopped") {
				s.Errorf("the status does not say that the upgrade has stopped:\n%s", status)
			}
		})
	}

	second := versionOf(t, next)
	s.Run("pause", func(s *Space) {
		result := u.run(s, "--to", next, "--unsigned", "--yes", "--pause-after", "1", "--verify", "5s")
		if result.Code != 0 || !strings.Contains(result.Out, "paused") {
			s.Errorf("exit code %d: %s", result.Code, said(result))
		}
		if in := u.count(s, second); in != 1 {
			s.Errorf("%d nodes are in the version", in)
		}
	})
	s.Run("the leader is killed", func(s *Space) {
		s.Barque(s, "upgrade", "--to", next, "--unsigned", "--yes", "--wait", "0", "--verify", "5s")
		Eventually(s, 3*deadline, "another node begins", func(ctx context.Context) error {
			o, err := u.object(ctx, second)
			if err == nil && !slices.ContainsFunc(o.Status.Nodes, func(n upgrade.NodeStatus) bool {
				return n.Phase == upgrade.Restarting || n.Phase == upgrade.Checking
			}) {
				err = fmt.Errorf("its status is %+v", o.Status)
			}
			return err
		})
		status, err := s.Status(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		s.Dev(s, "kill", status.Leader)
		s.Dev(s, "start", status.Leader)
		result := u.run(s, "--to", next, "--unsigned", "--yes", "--verify", "5s")
		for try := 0; result.Code == 1 && try < 3; try++ { // a gate may have failed by the kill
			s.Logf("once more: %s", said(result))
			result = u.run(s, "--to", next, "--unsigned", "--yes", "--verify", "5s")
		}
		if result.Code != 0 {
			s.Fatalf("exit code %d: %s", result.Code, said(result))
		}
		u.in(s, second)
	})
	stop()
	writing.Wait()
	s.Logf("%d writes, %d of them at the second try", r.calls.Load(), r.retries.Load())
	for _, failure := range r.failures {
		s.Error(failure)
	}
	if r.calls.Load() < 100 {
		s.Error("there were too few writes for a judgement")
	}
	if after := s.containers("app=hello"); after != containers {
		s.Errorf("the containers before:\n%safter:\n%s", containers, after)
	}
}

// upgradeByCommand looks at the upgrades of a cluster.
type upgradeByCommand struct {
	*Space
	first string // version that the cluster began with
}

// upgradeTimeout bounds one run of the command.
const upgradeTimeout = 15 * time.Minute

// run runs `barque upgrade`.
func (u *upgradeByCommand) run(s *Space, args ...string) Result {
	s.Helper()
	binary, err := Binary()
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), upgradeTimeout)
	defer cancel()
	result := runFor(ctx, "", s.env(), append([]string{binary, "upgrade"}, args...)...)
	s.Logf("barque upgrade %s: exit code %d\n%s", strings.Join(args, " "), result.Code, said(result))
	return result
}

func said(r Result) string { return r.Out + r.Err }

// in requires all nodes to be in a version.
func (u *upgradeByCommand) in(s *Space, version string) {
	s.Helper()
	if in := u.count(s, version); in != len(s.Nodes()) {
		s.Errorf("%d of %d nodes are in version %s", in, len(s.Nodes()), version)
	}
}

func (u *upgradeByCommand) count(s *Space, version string) (in int) {
	s.Helper()
	var status struct {
		Members []struct{ Name, Version string }
	}
	Eventually(s, deadline, "the status", func(ctx context.Context) error {
		result := s.BarqueResult(ctx, "cluster", "status", "-o", "json")
		return json.Unmarshal([]byte(result.Out), &status)
	})
	for _, m := range status.Members {
		if strings.HasSuffix(m.Version, "+barque."+version) {
			in++
		} else {
			s.Logf("%s is in version %s", m.Name, m.Version)
		}
	}
	return in
}

func (u *upgradeByCommand) object(ctx context.Context, version string) (*upgrade.Object, error) {
	config, err := clientcmd.BuildConfigFromFlags("", u.Kubeconfig())
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	o, err := client.Resource(upgrade.Resource).Get(ctx, upgrade.NameOf(version), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return upgrade.Read(o)
}

// versionOf returns the version of a program, of the one under test when empty.
func versionOf(t testing.TB, binary string) string {
	t.Helper()
	if binary == "" {
		var err error
		if binary, err = Binary(); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), binary, "version", "-o", "json").Output()
	var about struct{ Version string }
	if err := errors.Join(err, json.Unmarshal(out, &about)); err != nil {
		t.Fatal(err)
	}
	return about.Version
}

// scriptRelease makes an archive whose program is a script. It says its version, and does the rest
// as a node.
func scriptRelease(t testing.TB, version, says, rest string) string {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = version ]; then echo '{\"version\": %q}'; exit; fi\n%s\n",
		says, rest)
	name := release.ArchiveName(version, "amd64")
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	zipped := gzip.NewWriter(f)
	files := tar.NewWriter(zipped)
	err = files.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimSuffix(name, ".tar.gz") + "/barque",
		Mode: 0o755, Size: int64(len(script))})
	if err == nil {
		_, err = files.Write([]byte(script))
	}
	if err := errors.Join(err, files.Close(), zipped.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}
