package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParse(t *testing.T) {
	o, err := parse(nil)
	if err != nil || !slices.Equal(o.atOnce, []int{1, 10, 50}) || !slices.Equal(o.pods, []int{0, 30, 110}) ||
		!o.wants(start) || !o.wants(idle) {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parse([]string{"-only", "mem", "-pods", "3"}); err != nil || o.wants(start) || !o.wants(memory) ||
		o.wants(idle) || !slices.Equal(o.pods, []int{3}) {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range []string{"-at-once 0", "-many 0", "-scrape -1s", "-at-once 10,1", "-pods 1,111", "-pods x",
		"-pods -1", "-rounds 0", "-repeats 0", "-watched 0s", "-settle -1s", "-only (", "-side ("} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%s was taken", args)
		}
	}
}

func TestRoundsOf(t *testing.T) {
	for _, c := range []struct{ atOnce, most, want int }{{1, 20, 20}, {10, 20, 10}, {50, 20, 3}, {110, 20, 3},
		{50, 2, 2}} {
		if got := roundsOf(c.atOnce, c.most); got != c.want {
			t.Errorf("%d at once, at most %d: %d rounds, want %d", c.atOnce, c.most, got, c.want)
		}
	}
}

func TestSince(t *testing.T) {
	before := usage{cpu: map[string]time.Duration{nodeItself: time.Second, containerd: time.Second}}
	after := usage{cpu: map[string]time.Duration{nodeItself: 3 * time.Second, containerd: time.Second}}
	fs := after.since(before, "of ", "s", 0.5)
	if len(fs) != 2 || fs[0].What != "of "+nodeItself || fs[0].Values[0] != 1 || fs[1].Values[0] != 0 {
		t.Error(fs)
	}
}

func TestSpending(t *testing.T) {
	before := spending{ofNode: time.Second, ofShims: time.Second}
	of := spending{ofNode: 3 * time.Second, ofShims: time.Second, ofRunc: 2 * time.Second}.since(before)
	fs := of.figures(4, 7*time.Second)
	if of.sum() != 4*time.Second || len(fs) != len(kinds)+3 || fs[0].Values[0] != 7 || fs[1].Values[0] != 2 ||
		fs[len(fs)-1].Values[0] != 1000 {
		t.Error(of, fs)
	}
}

func TestParseRollup(t *testing.T) {
	const text = "55e-7ff ---p 00000000 00:00 0 [rollup]\nRss:  2048 kB\nPss:  1024 kB\nPss_Anon: 9 kB\nAnonymous:  512 kB\n"
	m, err := parseRollup([]byte(text))
	if err != nil || m != (memoryOf{rss: 2, pss: 1, anonymous: 0.5}) {
		t.Errorf("%+v, %v", m, err)
	}
	for _, bad := range []string{"", "Rss: 1 kB\nPss: 1 kB\n", "Rss: x kB\nPss: 1 kB\nAnonymous: 1 kB\n"} {
		if _, err := parseRollup([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestHeld(t *testing.T) {
	h := held{nodeItself: {3, 2, 1}, containerd: {6, 5, 4}, allShims: {9, 8, 7}}
	if fs := h.figures(0); len(fs) != 6 || fs[0].What != "0 pods, memory of the node's process, RSS" ||
		fs[2].Values[0] != 1 {
		t.Error(fs)
	}
	if fs := h.figures(30); len(fs) != 7 || fs[6].What != "30 pods, memory of all shims, PSS" || fs[6].Values[0] != 8 {
		t.Error(fs)
	}
}

// TestSightings: the first look counts, and a pod that has ended is reported.
func TestSightings(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: phase}}
	}
	s := &sightings{at: map[string]time.Time{}}
	began := map[string]time.Time{"a": at(10), "b": at(11)}
	s.see(pod("a", corev1.PodPending), at(11))
	s.see(pod("a", corev1.PodRunning), at(12))
	s.see(pod("a", corev1.PodRunning), at(20))
	s.see("no pod", at(20))
	if took, err := s.since(began); err == nil || len(took) != 1 || took[0] != 2*time.Second {
		t.Error(took, err)
	}
	s.see(pod("b", corev1.PodFailed), at(12))
	if _, err := s.since(began); err == nil || !strings.Contains(err.Error(), "1 of 2 pods run") ||
		!strings.Contains(err.Error(), "pod b is Failed") {
		t.Error(err)
	}
	s.see(pod("b", corev1.PodRunning), at(14))
	if took, err := s.since(began); err != nil || len(took) != 2 || took[0]+took[1] != 5*time.Second {
		t.Error(took, err)
	}
}

// TestRoom: its programs run until the input ends, and one that ends early ends the room.
func TestRoom(t *testing.T) {
	if err := serveIfAsked([]string{"-only", serveRoom}); !errors.Is(err, errNotAsked) {
		t.Error(err)
	}
	r := room{Dir: t.TempDir(),
		Programs: []program{
			{Name: "first", Command: []string{"/bin/sh", "-c", "echo hello; exec cat /dev/zero >/dev/null"}},
			{Name: "second", Command: []string{"/bin/sleep", "1000"}}}}
	var said bytes.Buffer
	r.Programs[1].Held = true
	if err := r.serve(strings.NewReader(""), &said); err != nil || strings.Contains(said.String(), "second") {
		t.Errorf("without a line: %q, %v", said.String(), err)
	}
	said.Reset()
	if err := r.serve(strings.NewReader("\n"), &said); err != nil {
		t.Error(err)
	}
	if lines := strings.Split(said.String(), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "first ") ||
		!strings.HasPrefix(lines[1], "second ") {
		t.Errorf("it said %q", said.String())
	}
	r.Programs[0].Command, r.Programs[1].Held = []string{"/bin/false"}, false
	never, end := io.Pipe()
	defer end.Close()
	if err := r.serve(never, io.Discard); err == nil || !strings.Contains(err.Error(), "first has ended") {
		t.Error(err)
	}
	r.Programs[0].Socket = filepath.Join(r.Dir, "socket")
	if err := r.serve(never, io.Discard); err == nil || !strings.Contains(err.Error(), "before it listened") {
		t.Error(err)
	}
	r.Programs[0].Command = []string{"/bin/sleep", "1000"}
	if err := r.serve(strings.NewReader(""), io.Discard); err != nil {
		t.Error("the input ended while a program did not listen:", err)
	}
	file := filepath.Join(r.Dir, "room.json")
	if err := errors.Join(os.WriteFile(file, []byte("{"), 0o600), serveIfAsked([]string{serveRoom, file})); err == nil {
		t.Error("a damaged file was taken")
	}
}
