package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/settings"
)

// Servers and agents take their flags from /etc/barque/config.yaml and from the environment, too:
// see package settings and docs/configuration.md.

// acts are flags that do something once. In a file they would do it at each start.
var acts = []string{"wipe", "replace", "rejoin", "restore-from", "restore-key-file"}

// settingsOf are the settings of the command of a role.
func settingsOf(role string) settings.Kind {
	k := settings.Kind{
		Aliases: map[string]string{"node-name": "name", "https-listen-port": "api-port"},
		Secret:  map[string]string{"token": "token-file"},
		Acts:    acts,
		Own:     []string{"config", "help", "all", "output"},
	}
	other := roleServer
	if role == roleServer {
		other = roleAgent
		k.Aliases["server"] = "join"
	} else {
		k.Aliases["join"] = "server"
	}
	k.Foreign = func(name string) bool { return isSettingOf(other, name) }
	return k
}

func isSettingOf(role, name string) bool {
	cmd := &cobra.Command{}
	addRoleFlags(cmd, role)
	return cmd.Flags().Lookup(name) != nil
}

// addRoleFlags adds the flags of a role, without --config.
func addRoleFlags(c *cobra.Command, role string) *nodeFlags {
	f := addNodeFlags(c)
	if role == roleServer {
		addServerFlags(c, f)
	} else {
		addAgentFlags(c, f)
	}
	return f
}

// withSettings makes a command take what its command line leaves open from files and variables.
func withSettings(c *cobra.Command, role string) *settings.Loaded {
	c.Flags().String("config", settings.DefaultFile,
		"file with settings, each by the name of its flag, with drop-ins beside it in FILE.d; none reads no file and no BARQUE_* variables")
	loaded := &settings.Loaded{}
	c.PreRunE = func(c *cobra.Command, args []string) error {
		got, err := settings.Load(c.Flags(), settingsOf(role), settingsFile(c), os.Environ())
		if err != nil {
			return command.Usage(c, err)
		}
		*loaded = *got
		return command.RefuseEmpty(c, args)
	}
	return loaded
}

// settingsFile is the value of --config, or else of its variable.
func settingsFile(c *cobra.Command) string {
	f := c.Flags().Lookup("config")
	if file := os.Getenv("BARQUE_CONFIG"); file != "" && (f == nil || !f.Changed) {
		return file
	}
	if f == nil {
		return settings.DefaultFile
	}
	return f.Value.String()
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show or check the settings of a server or an agent",
		Long: `Show or check the settings of a server or an agent. They are flags of the command line,
BARQUE_* variables, and what /etc/barque/config.yaml and the files of
/etc/barque/config.yaml.d have, in this order: a flag counts more than a variable, and a
variable more than a file.`,
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Print the settings that count, and where they come from",
	}
	for _, role := range []string{roleServer, roleAgent} {
		show.AddCommand(showConfigCommand(role))
	}
	cmd.AddCommand(show, checkConfigCommand())
	return cmd
}

// shownSetting is one line of `barque config show`.
type shownSetting struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
	// From is empty for a default.
	From string `json:"from,omitempty"`
}

func showConfigCommand(role string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   role,
		Short: "Print the settings that count for `barque " + role + "`, with the flags that follow",
		Example: "  barque config show " + role + "\n" +
			"  barque config show " + role + " --all -o yaml",
		Args: command.NoArgs,
	}
	addRoleFlags(cmd, role)
	all := cmd.Flags().Bool("all", false, "also those that have their defaults")
	format := command.OutputFlag(cmd)
	loaded := withSettings(cmd, role)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		kind, shown := settingsOf(role), []shownSetting{}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if slices.Contains(kind.Own, f.Name) || f.Hidden || !f.Changed && !*all {
				return
			}
			s := shownSetting{Name: f.Name, Value: f.Value.String()}
			if list, is := f.Value.(pflag.SliceValue); is {
				s.Value = list.GetSlice()
			}
			if _, secret := kind.Secret[f.Name]; secret && f.Changed {
				s.Value = "(secret)"
			}
			if from, has := loaded.Origins[f.Name]; has {
				s.From = from.String()
			} else if f.Changed {
				s.From = settings.Origin{}.String()
			}
			shown = append(shown, s)
		})
		sayUnused(c.ErrOrStderr(), loaded, role)
		return command.Print(c, *format, shown, func(w io.Writer) error { return writeSettings(w, shown) })
	}
	return cmd
}

// sayUnused names the settings that are those of the other role.
func sayUnused(w io.Writer, loaded *settings.Loaded, role string) {
	for _, name := range slices.Sorted(maps.Keys(loaded.Unused)) {
		fmt.Fprintf(w, "%v: %s has no effect on `barque %s`\n", loaded.Unused[name], name, role)
	}
}

func writeSettings(w io.Writer, shown []shownSetting) error {
	if len(shown) == 0 {
		_, err := fmt.Fprintln(w, "everything has its default; --all shows them")
		return err
	}
	fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
	for _, s := range shown {
		value := fmt.Sprint(s.Value)
		if list, is := s.Value.([]string); is {
			value = strings.Join(list, ", ")
		}
		if value == "" {
			value = "-"
		}
		from := s.From
		if from == "" {
			from = "the default"
		}
		if _, err := fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, value, from); err != nil {
			return err
		}
	}
	return nil
}

func checkConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a file of settings, with its drop-ins, before a node starts with it",
		Example: "  barque config check /etc/barque/config.yaml\n" +
			"  barque config check --role agent config.yaml",
		Args: command.ExactArgs("FILE"),
	}
	role := cmd.Flags().String("role", roleServer, "server or agent: whose settings they are")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if *role != roleServer && *role != roleAgent {
			return command.Usage(c, fmt.Errorf("--role %q: want server or agent", *role))
		}
		of := &cobra.Command{Use: *role}
		f := addRoleFlags(of, *role)
		loaded, err := settings.Load(of.Flags(), settingsOf(*role), args[0], nil)
		if err == nil && len(loaded.Files) == 0 {
			err = fmt.Errorf("there is no file %s, and none in %s.d", args[0], args[0])
		}
		if err != nil {
			return err
		}
		sayUnused(c.ErrOrStderr(), loaded, *role)
		if err := command.RefuseEmpty(of, nil); err != nil {
			return errors.Unwrap(err)
		}
		o, err := f.complete(of)
		if err == nil && *role == roleServer {
			err = o.CheckServer()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(loaded.Files, ", "), err)
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s: `barque %s` would start with it\n", strings.Join(loaded.Files, ", "),
			*role)
		return err
	}
	return cmd
}
