package clustertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/machines"
)

// interrupt presses Ctrl-C in the middle of commands that change the cluster: they say that nothing
// was changed, or that they do not know (exit code 5); and the servers finish what was begun.
func (d *drilled) interrupt() {
	for _, delay := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 800 * time.Millisecond} {
		d.interrupted("barque cluster demote s4 --yes", delay)
		d.insist(d.s1, "barque cluster promote s4")
	}
	d.whole(d.s1, d.s2, d.s4)

	d.cutRemoval()
	if d.settled() {
		if r := d.try(d.s1, "barque cluster remove s4 --yes"); r.Error != nil && !contains(r.Err, "is no member") {
			d.Fatal(r.Error)
		}
	}
	if code := d.ended(d.s4); code != 3 {
		d.Errorf("barque on a server that was removed ends with %d, want 3", code)
	}
	d.whole(d.s1, d.s2)
	d.give(d.shell(d.s1, "barque token create --role server"), d.s4)
	d.start(d.s4, "barque server --wipe --join https://10.1.0.1:6443 --token-file /etc/barque/token")
	d.ready(d.s4)
	d.whole(d.s1, d.s2, d.s4)

	const restore = "barque snapshot restore FILE.backup --key-file backup.key --yes"
	for _, delay := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond} {
		d.noteBoth()
		d.interrupted(restore, delay)
		d.restoredOrNot()
	}
	d.noteBoth()
	d.hanging(restore)
	d.whole(d.s1, d.s2, d.s4)
	d.restoredOrNot()
	d.shell(d.s1, restore)
	d.whole(d.s1, d.s2, d.s4)
}

// interrupted presses Ctrl-C after a while.
func (d *drilled) interrupted(command string, delay time.Duration) {
	d.Helper()
	p, err := d.s1.Start("", "exec "+command)
	if err != nil {
		d.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(delay): // brief: Ctrl-C comes at any moment
	}
	d.pressed(p, command)
}

func (d *drilled) pressed(p *machines.Process, command string) {
	d.Helper()
	d.must(p.Signal(syscall.SIGINT))
	ctx, cancel := context.WithTimeout(d.Context(), deadline)
	defer cancel()
	r := p.Wait(ctx)
	said := strings.TrimSpace(r.Out + r.Err)
	d.Logf("%s, interrupted: code %d, %s", command, r.Code, said)
	switch {
	case ctx.Err() != nil:
		d.Errorf("%s does not end by Ctrl-C", command)
	// 130: before it asked a server
	case r.Code == 0, r.Code == 5, r.Code == 130, strings.Contains(said, "nothing was changed"):
	case r.Code == -1 && said == "": // the signal came before the program was up
	default:
		d.Errorf(
			"%s, interrupted, ends with code %d and says neither that nothing was changed nor that it does not know: %s", command, r.Code, said)
	}
}

// freeze makes servers stand still until the function that it returns is called.
func (d *drilled) freeze(all ...*machines.Machine) (goOn func()) {
	d.Helper()
	for _, m := range all {
		d.must(d.process(m).Signal(syscall.SIGSTOP))
	}
	return func() {
		for _, m := range all {
			d.must(d.process(m).Signal(syscall.SIGCONT))
		}
	}
}

// cutRemoval presses Ctrl-C when s4 is being removed: after the question was answered, while there
// is no quorum.
func (d *drilled) cutRemoval() {
	d.Helper()
	const command = "barque cluster remove s4"
	d.shell(d.s1, "mkfifo answer")
	answer, err := os.OpenFile(d.s1.Path(machines.Home+"/answer"), os.O_RDWR, 0)
	d.must(err)
	defer answer.Close()
	p, err := d.s1.Start("", "exec "+command+" <answer")
	d.must(err)
	Eventually(d, deadline, "the question", func(context.Context) error {
		if said := p.Said(); !strings.Contains(said, "Go on? [y/N]") {
			return errors.New(said)
		}
		return nil
	})
	defer d.freeze(d.s2, d.s4)()
	_, err = answer.WriteString("y\n")
	d.must(err)
	select {
	case <-p.Done():
	case <-time.After(500 * time.Millisecond): // brief: Ctrl-C comes in the middle
	}
	d.pressed(p, command)
}

// hanging presses Ctrl-C in the middle of a command on s1 that cannot go on, because there is no
// quorum.
func (d *drilled) hanging(command string) {
	d.Helper()
	defer d.freeze(d.s2, d.s4)()
	d.interrupted(command, 1500*time.Millisecond)
}

// settled waits until the removal of s4 is finished, or was never begun, and reports whether s4 is
// still a member.
func (d *drilled) settled() (member bool) {
	d.Helper()
	Eventually(d, 2*deadline, "the removal is finished, or was never begun", func(context.Context) error {
		status, err := d.drill.status(d.s1)
		if err != nil {
			return err
		}
		out := isWhole(status, []*machines.Machine{d.s1, d.s2})
		in := isWhole(status, []*machines.Machine{d.s1, d.s2, d.s4})
		member = in == nil
		if out != nil && in != nil {
			return errors.Join(out, in)
		}
		for _, w := range status.Warnings {
			if strings.Contains(w.Text, "on its way out") || strings.Contains(w.Text, "is to leave") {
				return errors.New(w.Text)
			}
		}
		return nil
	})
	return member
}

// noteBoth writes the notes one and two, in this order. A restore that was interrupted before may
// come to its end only now, in between: then the first is gone, and both are written again.
func (d *drilled) noteBoth() {
	d.Helper()
	Eventually(d, deadline, "both notes", func(ctx context.Context) error {
		d.note(d.s1, "one")
		d.note(d.s1, "two")
		one, two, err := d.notes(ctx)
		switch {
		case err != nil:
			return err
		case one && !two:
			d.Fatal("what was written last is gone, and what was written before that is not")
		case !one:
			return errors.New("a restore came between them")
		}
		return nil
	})
}

// notes says which of the notes are there at one moment.
func (d *drilled) notes(ctx context.Context) (one, two bool, err error) {
	list, err := d.api(d.s1).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, false, err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(list.Items, func(c corev1.ConfigMap) bool { return c.Name == name })
	}
	return has("one"), has("two"), nil
}

// restoredOrNot fails when a part of a restore is there: the writes after the backup are all there,
// or none is.
func (d *drilled) restoredOrNot() {
	d.Helper()
	configs := d.api(d.s1).CoreV1().ConfigMaps("default")
	Eventually(d, deadline, "all of the restore, or nothing", func(ctx context.Context) error {
		one, two, err := d.notes(ctx)
		if err != nil {
			return err
		}
		if one != two {
			d.Fatal("a half of what was written after the backup is there")
		}
		for _, name := range []string{"one", "two"} {
			if err := configs.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("clean up: %w", err)
			}
		}
		return nil
	})
}
