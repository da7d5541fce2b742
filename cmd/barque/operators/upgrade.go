package operators

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/upgrade"
	"github.com/barque/barque/upgrade/part"
	"github.com/barque/barque/upgrade/release"
)

// upgradeFlags are those of `barque upgrade`.
type upgradeFlags struct {
	to            string
	keys          []string
	spec          upgrade.Spec
	pauseAfter    int
	ready, gate   time.Duration
	verify        time.Duration
	wait          time.Duration
	dryRun, yes   bool
	format        *string
	asker         *command.Asker
	trusted       release.Keys
	architectures map[string]bool
}

// UpgradeCommand is `barque upgrade`.
func UpgradeCommand() *cobra.Command {
	f := &upgradeFlags{}
	cmd := &cobra.Command{
		Use:   "upgrade --to FILE|DIR|URL",
		Short: "Bring all nodes of the cluster to another version",
		Long: `Bring all nodes of the cluster to another version, from any machine. --to is the folder of
a release, its URL, or one of its archives with SHA256SUMS beside it. With --unsigned it
may also be a program, for developers.

  1. The release is verified, here and by each node itself, and brought to a server.
  2. All nodes get the program, over the cluster's own connections.
  3. The servers restart with it, one after the other, the leader last; then the agents,
     by groups. On the way to an earlier version the agents go first.
  4. After each, all voters must answer at the same revision, the servers must keep their
     promises (barque verify), and containers must be the same as before. A node that
     fails is taken back to the program before, and the upgrade stops.

The servers go on without this command, under any leader. The same command again watches,
ends a pause, or goes on after a failure. A program that crashes or hangs is taken back by
its node alone. The Upgrade object has the state: barque kubectl get upgrades.`,
		Example: `  barque upgrade --to ./v0.2.0 --dry-run
  barque upgrade --to ./v0.2.0 --pause-after 1
  barque upgrade --to https://releases.example.com/v0.2.0
  barque upgrade --to ./barque --unsigned --yes`,
		Args: command.NoArgs,
	}
	f.format, f.asker = command.OutputFlag(cmd), command.AddAskerFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "release: a folder, a URL of one, or an archive; with --unsigned also a program")
	flags.StringArrayVar(&f.keys, "release-key", nil,
		"public key of minisign, or a file with one, by which this command believes the release, beside the servers' own keys; may be repeated")
	flags.BoolVar(&f.spec.Unsigned, "unsigned", false,
		"let nodes that have no --release-key believe the release without a signature")
	flags.IntVar(&f.pauseAfter, "pause-after", 0, "pause once so many nodes are done; 0 is no pause")
	flags.IntVar(&f.spec.AgentsAtOnce, "agents-at-once", 5, "how many agents restart together")
	flags.DurationVar(&f.ready, "ready-timeout", 5*time.Minute, "how long a node may take until it is ready")
	flags.DurationVar(&f.gate, "gate-timeout", 2*time.Minute, "how long the gates of a node may take")
	flags.DurationVar(&f.verify, "verify", 10*time.Second,
		"for how long all servers are verified after each server and each group of agents; 0 leaves it out")
	flags.DurationVar(&f.wait, "wait", time.Hour, "how long to wait for the end; 0 does not wait")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only verify the release, and show the plan")
	flags.BoolVar(&f.yes, "yes", false, "do not ask")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(c); err != nil {
			return err
		}
		return f.run(c)
	}
	return cmd
}

func (f *upgradeFlags) check(c *cobra.Command) (err error) {
	if err := errors.Join(command.CheckFormat(c, *f.format), f.asker.Check(c)); err != nil {
		return err
	}
	switch {
	case f.to == "":
		return command.Usage(c, errors.New("give the release with --to"))
	case f.pauseAfter < 0 || f.spec.AgentsAtOnce < 1 || f.spec.AgentsAtOnce > 100:
		return command.Usage(c, errors.New("--pause-after wants no negative number, and --agents-at-once one from 1 to 100"))
	case f.ready < 10*time.Second || f.gate < 10*time.Second:
		return command.Usage(c, errors.New("--ready-timeout and --gate-timeout want 10s at least"))
	case f.verify < 0 || f.wait < 0:
		return command.Usage(c, errors.New("--verify and --wait want no negative duration"))
	}
	if f.trusted, err = release.ReadKeys(f.keys); err != nil {
		return command.Usage(c, fmt.Errorf("--release-key: %w", err))
	}
	f.spec.ReadySeconds, f.spec.GateSeconds = int(f.ready.Seconds()), int(f.gate.Seconds())
	f.spec.VerifySeconds = new(int(f.verify.Seconds()))
	if f.pauseAfter > 0 {
		f.spec.PauseAfter = &f.pauseAfter
	}
	return nil
}

func (f *upgradeFlags) run(c *cobra.Command) error {
	ctx, tell := c.Context(), command.Teller(c)
	config, err := f.asker.Config()
	if err != nil {
		return err
	}
	heard, err := f.asker.Ask(ctx)
	if err != nil {
		return err
	}
	u := &remote.Upgrading{Config: config, Tell: tell, Progress: func(name string) func(int64) io.Writer {
		return command.CopyProgress(c, "sending "+name)
	}}
	if f.architectures, err = u.Architectures(ctx); err != nil {
		return err
	}
	l, err := release.Open(ctx, f.to, func(program string) (string, error) {
		about, err := part.AboutProgram(ctx, program)
		return about.Version, err
	}, f.wants)
	if err != nil {
		return fmt.Errorf("read the release: %w", err)
	}
	defer l.Close()
	if err := f.believe(l); err != nil {
		return err
	}
	f.spec.Version, f.spec.Checksum = l.Version, release.Digest(l.Sums)
	u.Spec = f.spec
	plan := u.Preview(heard.Status())
	if err := f.show(c, &plan); err != nil || f.dryRun {
		return err
	}
	if len(plan.Steps) > 0 && !f.yes {
		fmt.Fprint(c.ErrOrStderr(), "Go on? [y/N] ")
		if err := command.Confirmed(c); err != nil {
			return err
		}
	}
	offered, err := u.Upload(ctx, l)
	if err != nil {
		return err
	}
	tell(fmt.Sprintf("server %s has the release %s", offered.Server, offered.Version))
	o, err := u.Begin(ctx)
	if err != nil {
		return err
	}
	if f.wait > 0 {
		if o, err = u.Await(ctx, o, f.wait); err != nil {
			return err
		}
	}
	return command.Print(c, *f.format, o, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, "upgrade "+o.Text())
		return err
	})
}

// wants reports whether nodes need an archive. Servers without a node have no known architecture.
func (f *upgradeFlags) wants(arch string) bool {
	return len(f.architectures) == 0 || f.architectures[arch]
}

// believe verifies the release by the keys of this command. The servers do it by their own.
func (f *upgradeFlags) believe(l *release.Local) error {
	for arch := range f.architectures {
		if name := l.Archives[arch]; name == "" || l.Paths[name] == "" {
			return refusedUpgrade(
				fmt.Errorf("the release has no archive for %s, which nodes of this cluster need", arch))
		}
	}
	if len(f.trusted) == 0 {
		return nil
	}
	if err := f.trusted.Verify(l.Sums, l.Signature); err != nil {
		return refusedUpgrade(err)
	}
	return nil
}

func refusedUpgrade(err error) error {
	return &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %w", err)}
}

// show prints the plan, and returns an error if it is refused.
func (f *upgradeFlags) show(c *cobra.Command, plan *upgrade.Preview) error {
	text := func(w io.Writer) error {
		fmt.Fprintf(w, "The cluster goes %s to version %s:\n", plan.Direction, plan.Version)
		for _, line := range plan.Lines() {
			fmt.Fprintln(w, "  "+line)
		}
		return nil
	}
	var err error
	if f.dryRun {
		err = command.Print(c, *f.format, plan, text)
	} else {
		err = text(c.ErrOrStderr())
	}
	if err == nil && plan.Refused != "" {
		err = refusedUpgrade(errors.New(plan.Refused))
	}
	return err
}
