package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/adminapi/hardening"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/membership/enroll"
)

// TestKubeletFilesOfAnAgent: the arguments of an agent tell where its kubelet's configuration is.
func TestKubeletFilesOfAnAgent(t *testing.T) {
	for words, want := range map[string][]string{
		"barque agent": nil,
		"barque agent --server https://h:6443 --kubelet-config /k.yaml":               {"/k.yaml"},
		"/usr/bin/barque agent --kubelet-config=/k.yaml --kubelet-config-dir /k.d":    {"/k.yaml", "/k.d"},
		"barque agent --new-flag=x --kubelet-config-dir=k.d --node-label a=b":         {"k.d"},
		"barque agent --kubelet-config /a --kubelet-config /b --profile cis --rejoin": {"/b"},
	} {
		if files, err := kubeletFilesIn(strings.Fields(words)); err != nil || !slices.Equal(files, want) {
			t.Errorf("%s: %v, %v", words, files, err)
		}
	}
	for _, words := range []string{"", "barque", "barque server --kubelet-config /k", "barque agent --kubelet-config"} {
		if files, err := kubeletFilesIn(strings.Fields(words)); err == nil {
			t.Errorf("%q: %v", words, files)
		}
	}
}

// holdsEnv has the data directory of a process that is to hold it, as an agent does.
const holdsEnv = "BARQUE_TEST_HOLDS"

func TestMain(m *testing.M) {
	dir := os.Getenv(holdsEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	held, err := filelock.Acquire(context.Background(), enroll.LockFile(dir))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test has looked
	held.Close()
}

// TestKubeletOfTheRunningAgent: the files of the process that has the data directory count. Without
// such a process, or if it is no agent, they are not known.
func TestKubeletOfTheRunningAgent(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	file := filepath.Join(home, "kubelet.yaml")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	judged := func() string {
		t.Helper()
		files, unknown := runningKubelet(dir)
		m := hardening.Examine("a1", hardening.Place{DataDir: dir, Kubelet: files, KubeletUnknown: unknown})
		for _, r := range cis.Judge(&cis.Evidence{Machine: &m}, serverHas()).Rows {
			if r.ID == "4.1.9" {
				return string(r.Status) + ": " + r.Reason
			}
		}
		return ""
	}
	if is := judged(); !strings.HasPrefix(is, "unknown: a1: no agent is seen") {
		t.Error(is)
	}
	for words, want := range map[string]string{
		"agent --kubelet-config " + file:   "fail: a1:" + file + " has mode 0666",
		"agent --kubelet-config-dir=.":     "kubelet.yaml has mode 0666",
		"agent":                            "not applicable: ",
		"server --kubelet-config " + file:  "unknown: a1: the arguments of process",
		"agent --kubelet-config /nowhere ": "not applicable: ",
	} {
		t.Run(words, func(t *testing.T) {
			c := exec.Command(os.Args[0])
			c.Args, c.Dir, c.Env = append([]string{"barque"}, strings.Fields(words)...), home,
				append(os.Environ(), holdsEnv+"="+dir)
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil || line != "held\n" {
				t.Errorf("%q, %v", line, err)
			}
			if is := judged(); !strings.Contains(is, want) {
				t.Errorf("%s, want %s", is, want)
			}
			if err := errors.Join(in.Close(), c.Wait()); err != nil {
				t.Error(err)
			}
		})
	}
}
