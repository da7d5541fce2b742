package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/installed"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/cmd/barque/settings"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/machine"
	"github.com/barque/barque/membership/enroll"
)

func installCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install a server or an agent as a service of this machine",
		Long: `Install a server or an agent as a service of this machine, for systemd or OpenRC: copy
this program to /usr/local/bin/barque unless a package owns it, write the flags that are
given into /etc/barque/config.yaml, write the service, start it now and at each boot, and
wait until it serves. The plan is shown first. Nothing is changed if a check fails.

A repetition with the same flags changes nothing. A setting that the file has with another
value is not overwritten: change the file. 'barque uninstall' takes all of it away.`,
		Example: `  barque install server --dry-run
  barque install server --tls-san api.example.org --snapshot-unsealed
  barque install server --join https://10.0.0.1:6443 --token-file /root/token
  barque install agent --server https://10.0.0.1:6443 --token-file /root/token`,
	}
	for _, role := range []string{roleServer, roleAgent} {
		cmd.AddCommand(installRoleCommand(role))
	}
	return cmd
}

// installing holds the arguments of `barque install`.
type installing struct {
	role                 string
	flags                *nodeFlags
	init                 string
	noStart, dryRun, yes bool
	wait                 time.Duration
}

// installFlags are those of `barque install` that are no settings of a node.
var installFlags = []string{"init", "no-start", "dry-run", "yes", "wait"}

var installExamples = map[string]string{
	roleServer: "  barque install server\n" +
		"  barque install server --join https://10.0.0.1:6443 --token-file /root/token",
	roleAgent: "  barque install agent --server https://10.0.0.1:6443 --token-file /root/token",
}

func installRoleCommand(role string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     role,
		Short:   "Install `barque " + role + "` as a service, with the flags that are given",
		Example: installExamples[role],
		Args:    command.NoArgs,
	}
	i := &installing{role: role, flags: addRoleFlags(cmd, role)}
	cmd.Flags().StringVar(&i.init, "init", "", "systemd or openrc (default: the one that runs)")
	cmd.Flags().BoolVar(&i.noStart, "no-start", false, "start it at the next boot, and not now")
	cmd.Flags().BoolVar(&i.dryRun, "dry-run", false, "only check, and show the plan")
	cmd.Flags().BoolVar(&i.yes, "yes", false, "do not ask")
	cmd.Flags().DurationVar(&i.wait, "wait", 5*time.Minute, "how long to wait until it serves; 0 does not wait")
	cmd.RunE = func(c *cobra.Command, _ []string) error { return i.run(c) }
	return cmd
}

func (i *installing) run(c *cobra.Command) error {
	given, token, err := i.given(c)
	if err != nil {
		return command.Usage(c, err)
	}
	if os.Geteuid() != 0 {
		return errors.New("installing takes root: run it with sudo; nothing was changed")
	}
	service, err := machine.Choose(i.init, "", machine.Execute)
	if err != nil {
		return command.Usage(c, err)
	}
	added, conflicts, err := i.compare(given)
	if err != nil {
		return command.Usage(c, err)
	}
	if len(conflicts) > 0 {
		return refused(fmt.Errorf("settings of this machine differ from the flags:\n  %s\nchange the file, or leave the flags out",
			strings.Join(conflicts, "\n  ")))
	}
	// The flags and the file together are checked, as the node will read them.
	kind := settingsOf(i.role)
	kind.Own = append(kind.Own, installFlags...)
	if _, err := settings.Load(c.Flags(), kind, settings.DefaultFile, nil); err != nil {
		return command.Usage(c, err)
	}
	o, err := i.flags.complete(c)
	if err == nil && i.role == roleServer {
		err = o.CheckServer()
	}
	if err != nil {
		return err
	}
	plan, before, err := i.plan(c.Context(), service, added, token)
	if err != nil {
		return err
	}
	if err := i.check(c, &o, before); err != nil {
		return err
	}
	return i.carryOut(c, service, plan, before, &o)
}

func refused(err error) error {
	return &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("%w; nothing was changed", err)}
}

// given returns the settings among the flags of the command line, and a token.
func (i *installing) given(c *cobra.Command) (given []settings.Setting, token string, err error) {
	kind := settingsOf(i.role)
	c.Flags().Visit(func(f *pflag.Flag) {
		switch {
		case slices.Contains(installFlags, f.Name) || slices.Contains(kind.Own, f.Name):
		case slices.Contains(acts, f.Name):
			err = errors.Join(err, fmt.Errorf("--%[1]s is done once, and a service would do it at each start: install with --no-start, "+
				"run `barque %[2]s --%[1]s …` once, end it when it serves, and start the service", f.Name, i.role))
		case f.Name == "token":
			token = f.Value.String()
		default:
			err = errors.Join(err, makeAbsolute(f))
			given = append(given, settings.Of(f))
		}
	})
	if token != "" {
		if c.Flags().Changed("token-file") {
			err = errors.Join(err, errors.New("give --token or --token-file, not both"))
		}
		given = append(given, settings.Setting{Name: "token-file", Values: []string{tokenFile}})
	}
	for _, s := range given {
		secret := s.Name == "token-file" && token == "" || s.Name == "ca-key-file" || s.Name == "snapshot-key-file"
		if err == nil && secret {
			err = machine.CheckSecret(s.Values[0])
		}
	}
	return given, token, err
}

// tokenFile is where a token of the command line goes.
const tokenFile = machine.ConfigDir + "/token"

// makeAbsolute makes the path that a flag has independent of the working directory: a service has
// another one.
func makeAbsolute(f *pflag.Flag) error {
	if is := f.Value.String(); !isPath(f.Name) || filepath.IsAbs(is) || is == "-" || is == "" {
		return nil
	}
	path, err := filepath.Abs(f.Value.String())
	if err != nil {
		return err
	}
	return f.Value.Set(path)
}

// isPath reports flags that name a file or a directory.
func isPath(name string) bool {
	return name == "registries" || slices.ContainsFunc([]string{"-dir", "-file", "-path", "-config", "-access-log"},
		func(end string) bool { return strings.HasSuffix(name, end) })
}

// compare returns the given settings that no file has, and those that a file has with another
// value.
func (i *installing) compare(given []settings.Setting) (added []settings.Setting, conflicts []string, err error) {
	of := &cobra.Command{Use: i.role}
	addRoleFlags(of, i.role)
	loaded, err := settings.Load(of.Flags(), settingsOf(i.role), settings.DefaultFile, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range given {
		is := of.Flags().Lookup(s.Name)
		from, has := loaded.Origins[s.Name]
		switch {
		case !has:
			added = append(added, s)
		case !slices.Equal(settings.Of(is).Values, s.Values):
			conflicts = append(conflicts, fmt.Sprintf("%v: %s is %s, and the command line has %s", from, s.Name,
				strings.Join(settings.Of(is).Values, ", "), strings.Join(s.Values, ", ")))
		}
	}
	return added, conflicts, nil
}

// newSettings begins a file of settings.
const newSettings = "# Settings of this machine's node, each by the name of its flag: see `barque config show ROLE`.\n"

func (i *installing) plan(
	ctx context.Context, service machine.Init, added []settings.Setting, token string,
) (machine.Plan, machine.State, error) {
	fail := func(err error) (machine.Plan, machine.State, error) { return nil, machine.State{}, err }
	text, err := os.ReadFile(settings.DefaultFile)
	if errors.Is(err, os.ErrNotExist) {
		text, err = []byte(strings.Replace(newSettings, "ROLE", i.role, 1)), nil
	}
	if err != nil {
		return fail(err)
	}
	if text, err = settings.Append(settings.DefaultFile, text, added); err != nil {
		return fail(err)
	}
	lines, err := settings.Lines(added)
	if err != nil {
		return fail(err)
	}
	from, err := machine.Program()
	if err != nil {
		return fail(err)
	}
	packaged, err := machine.Packaged(ctx, from, machine.Execute)
	if err != nil {
		return fail(err)
	}
	installation := machine.Installation{Role: i.role, Init: service, From: from, Packaged: packaged,
		Program: machine.ProgramPath, SettingsFile: settings.DefaultFile, Settings: text, Added: machine.Lines(lines),
		TokenFile: tokenFile, Token: token, NoStart: i.noStart}
	return installation.Plan(ctx)
}

// check examines the machine, unless the service runs on it already.
func (i *installing) check(c *cobra.Command, o *options.Options, before machine.State) error {
	findings := machine.Others("/")
	if !before.Active {
		if o.Join != "" && o.Token == "" && !enroll.HasJoined(o.DataDir) {
			return command.Usage(c, errors.New("joining needs a token: make one on a server with `barque token create --role "+
				i.role+"` and give it with --token-file or --token"))
		}
		if i.role == roleAgent && o.Join == "" && !enroll.HasJoined(o.DataDir) {
			return command.Usage(c, errors.New("an agent joins a cluster: give the address of a server with --server, and a token"))
		}
		more, err := installed.BeforeInstall(c.Context(), o, i.role, time.Now)
		if err != nil {
			return err
		}
		findings = append(findings, more...)
	}
	missing, unclear := 0, findings[:0:0]
	for _, f := range findings {
		if !f.OK {
			missing++
		}
		if !f.OK || f.Doubt {
			unclear = append(unclear, f)
		}
	}
	if err := command.Print(c, "", unclear, func(w io.Writer) error { return writeFindings(w, unclear) }); err != nil {
		return err
	}
	if missing > 0 {
		return refused(errors.New(terminal.Plural(missing, "thing keeps", "things keep") + " this machine from running it"))
	}
	return nil
}

// carryOut shows the plan, and does the steps that are left.
func (i *installing) carryOut(
	c *cobra.Command, service machine.Init, plan machine.Plan, before machine.State, o *options.Options,
) error {
	out := c.OutOrStdout()
	if plan.Done() {
		fmt.Fprintf(out, "barque-%s is installed so already; nothing was changed.\n", i.role)
	} else {
		fmt.Fprintf(out, "barque-%s becomes a service of this machine (%s):\n", i.role, service.Name())
	}
	if err := plan.Write(out, true); err != nil || i.dryRun {
		return err
	}
	if !plan.Done() {
		if err := confirmed(c, i.yes); err != nil {
			return err
		}
		if err := plan.Run(c.Context(), func(step string) { fmt.Fprintf(out, "%s\n", step) }); err != nil {
			return unfinished(c, err, "the same command goes on")
		}
	}
	if plan.Restart(before) {
		fmt.Fprintf(out, "barque-%s runs as it was started before: restart it for the changes to count.\n", i.role)
		return nil
	}
	if i.noStart || i.wait <= 0 {
		fmt.Fprintf(out, "To start it: %s\n", service.StartCommand(i.role))
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(c.Context(), i.wait, fmt.Errorf("it does not serve after %s", i.wait))
	defer cancel()
	serves := func(ctx context.Context) (bool, error) { return installed.Serves(ctx, o, i.role) }
	err := machine.Await(ctx, service, i.role, serves,
		func(text string) { fmt.Fprintf(out, "barque-%s: %s\n", i.role, text) })
	if err != nil {
		return unfinished(c, err, "it is installed, and goes on starting: "+service.Log(i.role))
	}
	next := "barque kubectl get nodes"
	if i.role == roleAgent {
		next = "on a server: " + next
	}
	fmt.Fprintf(out, "barque-%s serves. Next: %s\n", i.role, next)
	return nil
}

// confirmed asks a user at a terminal.
func confirmed(c *cobra.Command, yes bool) error {
	in, isFile := c.InOrStdin().(*os.File)
	if yes || !isFile || !terminal.Of(in).IsTerminal() {
		return nil
	}
	fmt.Fprint(c.ErrOrStderr(), "Go on? [y/N] ")
	return command.Confirmed(c)
}

// unfinished is the error of a command that was begun.
func unfinished(c *cobra.Command, err error, next string) error {
	if c.Context().Err() != nil {
		err = errors.New("interrupted")
	}
	return &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%w; %s", err, next)}
}
