package clustertest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/membership/datakeys"
)

// Of TestRotationsUnderKills. `make rotations` gives more.
var (
	rotationSecrets = flag.Int("secrets", 400, "how many Secrets TestRotationsUnderKills rotates")
	rotationKills   = flag.Int("kills", 12, "how often TestRotationsUnderKills kills the leader")
)

const (
	// secretMark is in the value of each Secret, and openMark in ConfigMaps, which are in clear.
	secretMark = "the-tiffany-yellow-is-encrypted"
	openMark   = "the-cubic-zirconia-lies-in-clear"

	// rotationBound is how long a rotation may take that is interrupted at each step.
	rotationBound = 20 * time.Minute
	// farServer is the one that is away for all rotations. It has no vote, so that the others can
	// lose their leader meanwhile.
	farServer = "s4"
	// Of each rotationsWithout rotations, one is without a second server from beginning to end.
	rotationsWithout = 4
)

// The data key is rotated again and again, while clients read and write Secrets. In each rotation
// the leader is killed at each step, and started again. One server is away for all rotations, and
// another one for each fourth. At the end, all Secrets are right by each server; no file and no
// disk of a server has one in clear, and no file has a value under a dropped key; and a backup from
// before brings its Secrets back.
func TestRotationsUnderKills(t *testing.T) {
	needs.AllTests(t)
	o := Options{Servers: 4,
		ServerArgs: []string{"--raft-snapshot-entries=2000", "--snapshot-schedule=0", "--audit-log-compress=false"}}
	if err := disk.Possible(); err != nil {
		needs.LeftOut(t, []error{fmt.Errorf("the search of the raw disks: %w", err)})
	} else {
		o.DiskMegabytes = 2048
	}
	r := newRotations(NewSpace(t, Start(t, o)))
	r.fill()
	backup, key := r.saveBackup(t)
	r.insist(t, "cluster", "demote", farServer, "--yes")
	if err := r.KillNodes(t.Context(), farServer); err != nil {
		t.Fatal(err)
	}
	finish := r.work()
	for r.kills < *rotationKills {
		r.rotate()
	}
	r.comesBack(farServer)
	if finish(); t.Failed() {
		return
	}
	r.rightAt(r.Nodes()...)
	r.nothingIsLeft()
	r.restoredElsewhere(t, backup, key)
	r.restoredHere(backup, key)
	r.nothingIsLeft()
	r.tell()
}

// rotations are the rotations of one run.
type rotations struct {
	*Space
	voters  []Process
	direct  map[string]kubernetes.Interface // clients by servers
	random  *rand.Rand
	moments []*rotationMoment
	keys    []string // IDs, in their order

	before   datakeys.Status // the current rotation
	at       datakeys.Status // when the moment of the next kill had come
	chosen   int             // Secret that was rewritten at that moment
	versions []string        // of Secrets, before the rotation
	kills    int
	took     []time.Duration // rotations
	unsure   int             // commands that could not say how the rotation has ended

	clients   rotationWork
	registers []*register
}

func newRotations(s *Space) *rotations {
	r := &rotations{Space: s, direct: map[string]kubernetes.Interface{},
		random: rand.New(rand.NewPCG(rand.Uint64(), 1))}
	r.moments = r.allMoments()
	servers, err := s.Servers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range servers {
		m, err := s.NewFailoverClient([]Process{p}, 0, deadline)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(m.Close)
		r.direct[p.Name] = m.Client()
		if p.Name != farServer {
			r.voters = append(r.voters, p)
		}
	}
	return r
}

func rotatedName(i int) string  { return fmt.Sprintf("s-%06d", i) }
func rotatedValue(i int) string { return fmt.Sprintf("%s %d %[1]s", secretMark, i) }

// fill makes the Secrets.
func (r *rotations) fill() {
	r.Helper()
	began := time.Now()
	const clients = 32
	var filling sync.WaitGroup
	for part := range clients {
		filling.Go(func() {
			for i := part; i < *rotationSecrets; i += clients {
				_, err := r.Client.CoreV1().Secrets(r.Namespace).Create(r.Context(),
					&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: rotatedName(i)},
						StringData: map[string]string{"v": rotatedValue(i)}}, metav1.CreateOptions{})
				if exceptExists(err) != nil {
					r.Error(err)
				}
			}
		})
	}
	filling.Wait()
	r.Logf("%d Secrets are written in %v", *rotationSecrets, time.Since(began).Round(time.Millisecond))
	r.openObjects()
	r.keys = []string{r.atRest().Keys[0].ID}
	r.rightAt(r.Nodes()...)
}

// rightAt reads all Secrets through each of the servers, and notes their versions.
func (r *rotations) rightAt(servers ...string) {
	r.Helper()
	for _, server := range servers {
		Eventually(r, deadline, "all Secrets by "+server,
			func(ctx context.Context) error { return r.right(ctx, r.direct[server]) })
	}
}

func (r *rotations) right(ctx context.Context, by kubernetes.Interface) error {
	list, err := by.CoreV1().Secrets(r.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	found := map[string]*corev1.Secret{}
	for i := range list.Items {
		found[list.Items[i].Name] = &list.Items[i]
	}
	r.versions = make([]string, *rotationSecrets)
	for i := range *rotationSecrets {
		is := found[rotatedName(i)]
		if is == nil || string(is.Data["v"]) != rotatedValue(i) {
			r.Fatalf("Secret %d is %+v", i, is)
		}
		r.versions[i] = is.ResourceVersion
	}
	return nil
}

// isAtRest returns an error unless all Secrets are under one key on all living servers.
func (r *rotations) isAtRest(s *datakeys.Status) error {
	switch {
	case s.Step != datakeys.AtRest:
		return fmt.Errorf("the step is %q, waiting: %q", s.Text, s.Waiting)
	case !s.Enabled, len(s.Keys) != 1, s.Clear > 0, s.Other > 0, s.Problem != "":
		return fmt.Errorf("it is %+v", s)
	}
	for _, server := range s.Servers {
		if server.Alive && (server.Generation != s.Generation || !server.Cleaned || server.Problem != "") {
			return fmt.Errorf("server %s is %+v", server.Name, server)
		}
	}
	return nil
}

// atRest waits until no change is under way.
func (r *rotations) atRest() (s datakeys.Status) {
	r.Helper()
	Eventually(r, rotationBound, "the end of the rotation", func(ctx context.Context) (err error) {
		if s, err = r.encryption(ctx); err == nil {
			err = r.isAtRest(&s)
		}
		return err
	})
	return s
}

// Stages of a rotation, in their order.
const (
	notBegun = iota
	spreading
	rewriting
	cleaning
	dropped
)

func (r *rotations) stage(s *datakeys.Status) int {
	switch {
	case s.Step == datakeys.Spread:
		return spreading
	case s.Step == datakeys.Rewrite:
		return rewriting
	case s.Step == datakeys.Clean:
		return cleaning
	case s.Generation > r.before.Generation:
		return dropped
	}
	return notBegun
}

// rotationMoment is one at which the leader is killed.
type rotationMoment struct {
	name  string
	stage int
	even  bool // only in even rotations: the others come to the later moment of the stage
	// when reports whether the moment has come within its stage. over: it has passed.
	when    func(ctx context.Context, s *datakeys.Status) (now, over bool)
	kills   int
	resumed []time.Duration
}

// allMoments are in their order.
func (r *rotations) allMoments() []*rotationMoment {
	at := func(context.Context, *datakeys.Status) (now, over bool) { return true, false }
	cleanedBy := func(servers int) func(context.Context, *datakeys.Status) (now, over bool) {
		return func(_ context.Context, s *datakeys.Status) (now, over bool) {
			n := 0
			for _, server := range s.Servers {
				if server.Alive && server.Cleaned {
					n++
				}
			}
			return n >= servers, false
		}
	}
	return []*rotationMoment{
		{name: "the new key is made known", stage: spreading, when: at},
		{name: "the new key writes", stage: rewriting, even: true, when: at},
		{name: "Secrets are rewritten", stage: rewriting, when: r.halfway()},
		{name: "the servers clean their disks", stage: cleaning, even: true, when: at},
		{name: "a server has cleaned its disk", stage: cleaning, when: cleanedBy(1)},
		{name: "the old key is dropped", stage: dropped, when: at},
	}
}

// halfway is when some Secret is rewritten that was not when it was first asked for.
func (r *rotations) halfway() func(context.Context, *datakeys.Status) (now, over bool) {
	generation := uint64(0)
	return func(ctx context.Context, s *datakeys.Status) (now, over bool) {
		if s.Generation != generation {
			generation, r.chosen = s.Generation, r.random.IntN(len(r.versions))
			for r.chosen < len(r.versions) {
				if is, err := r.isRewritten(ctx, r.chosen); err == nil && !is {
					break
				}
				r.chosen += 1 + r.random.IntN(len(r.versions)/2)
			}
		}
		if r.chosen >= len(r.versions) {
			return false, true
		}
		is, err := r.isRewritten(ctx, r.chosen)
		return err == nil && is, false
	}
}

// isRewritten reports whether this rotation has rewritten a Secret.
func (r *rotations) isRewritten(ctx context.Context, i int) (bool, error) {
	s, err := r.Client.CoreV1().Secrets(r.Namespace).Get(ctx, rotatedName(i), metav1.GetOptions{})
	return err == nil && s.ResourceVersion != r.versions[i], err
}

// watch asks for the state of the rotation, as fast as it is answered, until f returns true.
func (r *rotations) watch(
	ctx context.Context, what string, f func(ctx context.Context, s *datakeys.Status) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, rotationBound)
	defer cancel()
	var last datakeys.Status
	for {
		s, err := r.encryption(ctx)
		if err == nil {
			if last = s; f(ctx, &s) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; it is %+v", what, cmp.Or(context.Cause(ctx), err), last)
		case <-time.After(10 * time.Millisecond): // brief: the interval of a poll
		}
	}
}

// comes waits for a moment, and reports whether it has come. Otherwise the rotation has passed it.
func (r *rotations) comes(ctx context.Context, m *rotationMoment) (is bool) {
	r.Helper()
	r.chosen = 0
	err := r.watch(ctx, m.name, func(ctx context.Context, s *datakeys.Status) bool {
		r.at = *s
		stage := r.stage(s)
		if stage != m.stage {
			return stage > m.stage
		}
		now, over := m.when(ctx, s)
		is = now
		return now || over
	})
	if err != nil {
		r.Fatal(err)
	}
	return is
}

// leads asks which server leads.
func (r *rotations) leads(ctx context.Context) (s Status, err error) {
	data, err := r.Client.Discovery().RESTClient().Get().AbsPath(clusterstatus.StatusPath).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.Leader == "" {
		err = errors.New("no server leads")
	}
	return s, err
}

// rotate makes a rotation by the command, and kills the leader at each of its moments.
func (r *rotations) rotate() {
	r.Helper()
	r.before = r.atRest()
	r.rightAt(r.voters[len(r.took)%len(r.voters)].Name)
	without := ""
	if len(r.took)%rotationsWithout == rotationsWithout-1 {
		without = r.withoutOne()
	}
	began := time.Now()
	ctx, fail := context.WithCancelCause(r.Context())
	defer fail(nil)
	ended := make(chan error, 1)
	go func() { // ends with the rotation or the test, and is waited for
		err := r.command(ctx)
		if err != nil {
			fail(err)
		}
		ended <- err
	}()
	killed := 0
	for _, m := range r.moments {
		if m.even && len(r.took)%2 == 1 {
			continue
		}
		var is Status
		Eventually(r, deadline, "a leader",
			func(ctx context.Context) (err error) { is, err = r.leads(ctx); return err })
		if r.kills == *rotationKills || !r.comes(ctx, m) {
			continue
		}
		if err := r.kill(ctx, m, is.Leader); err != nil {
			r.Fatalf("%s: %v", m.name, err)
		}
		killed++
	}
	if err := <-ended; err != nil {
		r.Fatal(err)
	}
	after := r.atRest()
	r.took = append(r.took, time.Since(began))
	if id := after.Keys[0].ID; slices.Contains(r.keys, id) || !after.Keys[0].Writes {
		r.Fatalf("after the rotation the key is %s again: %+v", id, after.Keys)
	} else {
		r.keys = append(r.keys, id)
	}
	if without != "" {
		r.comesBack(without)
		r.clients.without.Store(false)
	}
	r.Logf("rotation %d: %v, %d kills, %d in all; without %q", len(r.took),
		r.took[len(r.took)-1].Round(time.Millisecond), killed, r.kills, without)
}

// withoutOne kills a server that does not lead, and returns it.
func (r *rotations) withoutOne() (without string) {
	r.Helper()
	Eventually(r, deadline, "a leader", func(ctx context.Context) error {
		is, err := r.leads(ctx)
		for _, p := range r.voters {
			if p.Name != is.Leader {
				without = p.Name
			}
		}
		return err
	})
	r.clients.without.Store(true)
	if err := r.KillNodes(r.Context(), without); err != nil {
		r.Fatal(err)
	}
	return without
}

// command runs `barque secrets-encrypt rotate`. It is run again where it says that nothing was
// changed: no leader, or a server that is not as far yet. It may say that it does not know the end,
// if the leader is killed before it has answered.
func (r *rotations) command(ctx context.Context) error {
	path, err := Binary()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rotationBound)
	defer cancel()
	for {
		result := runFor(ctx, "", r.env(), path, "secrets-encrypt", "rotate", "--wait", rotationBound.String())
		switch result.Code {
		case 0:
			return nil
		case exitcode.NoQuorum, exitcode.Refused, exitcode.Unfinished: // refused: an earlier one may have begun it
			begun := false
			if err := r.watch(ctx, result.Err, func(_ context.Context, s *datakeys.Status) bool {
				begun = r.stage(s) != notBegun
				return true
			}); err != nil {
				return err
			}
			if begun {
				r.unsure++
				return nil
			}
		default:
			return result.Error
		}
	}
}

// kill kills the leader, starts it again, and waits until the rotation goes on.
func (r *rotations) kill(ctx context.Context, m *rotationMoment, leader string) error {
	probe := r.chosen + 1 + len(r.versions)/20 // the ones before may have been rewritten at the same time
	// the others elect another one before it is known that all of it has ended
	killed := time.Now()
	if err := r.KillNodes(ctx, leader); err != nil {
		return err
	}
	goesOn := make(chan error, 1)
	var after time.Duration
	go func() { // is waited for below
		goesOn <- r.watch(ctx, "progress after the kill of "+leader,
			func(ctx context.Context, s *datakeys.Status) bool {
				on := m.stage == dropped || s.Generation > r.at.Generation
				if !on && m.stage == rewriting && probe < len(r.versions) {
					is, err := r.isRewritten(ctx, probe)
					on = err == nil && is
				}
				after = time.Since(killed)
				return on
			})
	}()
	err := errors.Join(r.StartNode(ctx, leader), <-goesOn)
	if err != nil {
		return err
	}
	var is Status
	Eventually(r, deadline, "a leader after the kill",
		func(ctx context.Context) (err error) { is, err = r.leads(ctx); return err })
	if is.LeaderSince.Before(killed) {
		r.Logf("%s did not lead any more when it was killed: this does not count", leader)
		return nil
	}
	r.kills++
	m.kills++
	if m.stage != dropped {
		m.resumed = append(m.resumed, after)
	}
	return nil
}

// comesBack starts a server that was away, and waits until it has taken over all and cleaned its
// disk. It reads all Secrets then.
func (r *rotations) comesBack(server string) {
	r.Helper()
	began := time.Now()
	if err := r.StartNode(r.Context(), server); err != nil {
		r.Fatal(err)
	}
	Eventually(r, deadline, server+" is ready, and as far as the others", func(ctx context.Context) error {
		if _, err := r.direct[server].Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
			return err
		}
		s, err := r.encryption(ctx)
		if err == nil {
			err = r.isAtRest(&s)
		}
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(s.Servers,
			func(is datakeys.ServerStatus) bool { return is.Name == server && is.Alive }) {
			return fmt.Errorf("it is away: %+v", s.Servers)
		}
		return nil
	})
	r.Logf("%s was away for a whole rotation, and is as far as the others %v after its start", server,
		time.Since(began).Round(time.Millisecond))
	r.rightAt(server)
}

// nothingIsLeft searches the files of all servers, and their raw disks, which have the files that
// were removed, too.
func (r *rotations) nothingIsLeft() {
	r.Helper()
	r.openObjects()
	search := newResidue(map[string]string{secretMark: secretMark, openMark: openMark})
	if err := search.dir(r.Dir); err != nil {
		r.Error(err)
	}
	used := map[string]bool{r.keys[len(r.keys)-1]: true}
	for id, files := range search.keys {
		if !used[id] {
			r.Errorf("values under the key %s, which was dropped, are in %q", id, slices.Sorted(maps.Keys(files)))
		}
	}
	if len(search.keys) == 0 {
		r.Error("no value under a key is found: the search finds nothing")
	}
	for _, server := range r.Nodes() {
		if d := r.Disk(server); d != nil {
			r.rawDisk(search, d)
			if !search.found[openMark][d.Image] {
				r.Errorf("nothing that is in clear is found on the disk of %s: the search finds nothing", server)
			}
		}
		for _, packed := range []bool{false, true} {
			in := func(file string) bool {
				return strings.HasPrefix(file, filepath.Join(r.DataDir(server), "store")+"/") &&
					strings.HasSuffix(file, unpackedSnapshot) == packed
			}
			if !slices.ContainsFunc(search.files(openMark), in) {
				r.Errorf(
					"nothing that is in clear is found in the store of %s (snapshots: %v): the search finds nothing",
					server, packed)
			}
		}
	}
	if files := search.files(secretMark); len(files) > 0 {
		r.Errorf("a Secret is in clear in %q", files)
	}
	r.Logf("%d MiB are searched: what is in clear is in %d files", search.bytes>>20, len(search.files(openMark)))
}

func (r *rotations) rawDisk(search *residue, d *disk.Disk) {
	r.Helper()
	mount, err := os.Open(d.Mount)
	if err == nil {
		err = errors.Join(unix.Syncfs(int(mount.Fd())), mount.Close())
	}
	var image *os.File
	if err == nil {
		image, err = os.Open(d.Image)
	}
	if err == nil {
		err = errors.Join(search.read(d.Image, image), image.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Error(err)
	}
}

// openObjects makes ConfigMaps, which are in clear, and waits until each server has them in its
// log.
func (r *rotations) openObjects() {
	r.Helper()
	for range 10 {
		_, err := r.Client.CoreV1().ConfigMaps(r.Namespace).Create(r.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "open-"},
				Data: map[string]string{"v": openMark}}, metav1.CreateOptions{})
		if err != nil {
			r.Fatal(err)
		}
	}
	Eventually(r, deadline, "the servers are in step", r.InStep)
}

// restoredElsewhere begins a new cluster with the backup.
func (r *rotations) restoredElsewhere(t *testing.T, backup, key string) {
	r.Helper()
	server, stop := r.beginFrom(t, backup, key)
	Eventually(r, deadline, "all Secrets of the backup in a new cluster", func(ctx context.Context) error {
		result := r.KubectlResult(ctx, "", "--server", server, "-n", r.Namespace, "get", "secrets", "-o", "json")
		if result.Error != nil {
			return result.Error
		}
		var list corev1.SecretList
		if err := json.Unmarshal([]byte(result.Out), &list); err != nil {
			return err
		}
		right := 0
		for _, s := range list.Items {
			if i, err := strconv.Atoi(strings.TrimPrefix(s.Name, "s-")); err == nil &&
				string(s.Data["v"]) == rotatedValue(i) {
				right++
			}
		}
		if right != *rotationSecrets {
			r.Fatalf("%d of %d Secrets are right", right, *rotationSecrets)
		}
		return nil
	})
	stop()
}

// restoredHere takes the cluster back to the backup. Its Secrets are rewritten under the newest
// key.
func (r *rotations) restoredHere(backup, key string) {
	r.Helper()
	r.Barque(r, "snapshot", "restore", backup, "--key-file", key, "--yes")
	r.rightAt(r.Nodes()...)
	if s := r.atRest(); s.Keys[0].ID != r.keys[len(r.keys)-1] {
		r.Errorf("after the restore the key is %s: %q", s.Keys[0].ID, r.keys)
	}
	r.rightAt(r.Nodes()...)
}

// tell logs the figures.
func (r *rotations) tell() {
	median := func(all []time.Duration) time.Duration {
		all = slices.Sorted(slices.Values(all))
		return all[len(all)/2].Round(time.Millisecond)
	}
	r.Logf(
		"%d rotations of %d Secrets, %d kills of the leader; a rotation took %v in the median, %v at most; %d commands could not say how it ended",
		len(r.took), *rotationSecrets, r.kills, median(r.took), slices.Max(r.took).Round(time.Millisecond), r.unsure)
	for _, m := range r.moments {
		if m.kills < *rotationKills/(3*len(r.moments)) {
			r.Errorf("only %d kills when %s", m.kills, m.name)
		}
		if len(m.resumed) > 0 {
			r.Logf("%d kills when %s: the rotation went on after %v in the median, %v at most", m.kills, m.name,
				median(m.resumed), slices.Max(m.resumed).Round(time.Millisecond))
		} else {
			r.Logf("%d kills when %s", m.kills, m.name)
		}
	}
	w := &r.clients
	r.Logf(
		"%d writes of Secrets were acknowledged, %d reads were right; the longest time without an acknowledged write was %v, and %v while only two servers were left, one of which was killed",
		w.writes.Load(), w.reads.Load(), time.Duration(w.gap.Load()).Round(time.Millisecond),
		time.Duration(w.gapWithout.Load()).Round(time.Millisecond))
}
