"""Of growing: hosts, networks, runs, the Grower, several processes."""

from mutants.mutant import mutant

_PREVIOUS = "tamiyo/test_policies.py::test_every_relevant_head_of_the_previous_action_is_seen"
_BY_LAYOUT = "tamiyo/rules/test_by_layout.py::"
_PROCESSES = "grower/test_several_processes.py::"

_RETIRING = "tamiyo/test_retiring.py::"

GROWING = (
    # Hosts
    mutant(
        "a_fossil_retired_at_once",
        "kasmina/stage_machine.py",
        "lived = self.epochs_in_stage if self.stage is Stage.FOSSILIZED else self.age",
        "lived = self.age",
        "kasmina/test_stage_machine.py::test_every_cell",
    ),
    mutant(
        "a_broken_fossil_hidden_where_it_is_weighed",
        "kasmina/slot.py",
        "            if life.stage is Stage.FOSSILIZED:  # part",
        "            if False:  # part",
        "kasmina/test_retire.py::test_a_fossil_that_breaks_shows_where_it_is_weighed",
    ),
    mutant(
        "an_old_contribution_taken_for_a_new_one",
        "kasmina/slot.py",
        "        self.weighed = False\n",
        "",
        "kasmina/test_retire.py::test_what_is_known_of_a_fossil_is_of_its_epoch",
    ),
    mutant(
        "fossils_off_with_the_other_seeds",
        "kasmina/coalitions.py",
        "nothing = [frozenset(kept)] if bare",
        "nothing = [frozenset()] if bare",
        "kasmina/test_retire.py::test_no_live_seed_is_on_in_the_last_coalition_and_every_fossil_is",
    ),
    mutant(
        "decay_of_what_was_not_measured",
        "tamiyo/decay.py",
        "            return count\n",
        "            return count + 1\n",
        f"{_RETIRING}test_decay_counts_epochs_below_rent_in_a_row",
    ),
    mutant(
        "retire_offered_to_every_rule",
        "tamiyo/observation.py",
        "            legal = unretired(legal)\n",
        "            pass\n",
        f"{_RETIRING}test_whoever_may_not_retire_sees_what_was_always_seen",
    ),
    mutant(
        "probed_at_full_alpha",
        "kasmina/coalitions.py",
        "return life.alpha_target",
        "return 1.0",
        "kasmina/test_coalitions.py::test_stacked_equal_separate",
    ),
    mutant(
        "probed_at_full_alpha_in_the_toy",
        "tolaria/worlds/toy/host.py",
        "self._effect(slot, life.alpha_target)",
        "self._effect(slot, 1.0)",
        "tolaria/worlds/toy/test_world.py::test_a_seed_is_probed_at_its_own_target",
    ),
    mutant(
        "best_of_condemned_epochs",
        "kasmina/governor.py",
        "        verdict = self._verdict(vitals)\n",
        "        verdict = self._verdict(vitals)\n"
        "        self.best_accuracy = max(self.best_accuracy, vitals.validation_accuracy or 0.0)\n",
        "kasmina/test_governor.py::test_the_best_is_that_of_good_epochs",
    ),
    mutant(
        "crash_booked_as_a_lost_worker",
        "tolaria/worlds/engine.py",
        "        self._refuse(given_up)\n",
        "        self._refuse(self._given_up(steps))\n",
        "simic/env/test_engine.py::test_a_host_that_the_governor_gives_up_at_once_has_crashed_and_is_not_lost",
    ),
    mutant(
        "snapshots_share_names_of_parameters",
        "kasmina/governor.py",
        "self._groups = [_own(group) for group in optimizer.param_groups]",
        "self._groups = [dict(group) for group in optimizer.param_groups]",
        "kasmina/test_rollback.py::test_names_of_parameters_come_back_with_them",
    ),
    mutant(
        "weights_loaded_under_another_alpha",
        "kasmina/seed.py",
        "theirs is not None and float(theirs) != float(self.alpha)",
        "False",
        "kasmina/test_tree.py::test_a_state_at_another_alpha_is_refused",
    ),
    mutant(
        "optimiser_keeps_the_seeds_that_left",
        "kasmina/persistence.py",
        "            model.care.forget(list(slot.seed.parameters()))\n",
        "            pass\n",
        "grower/test_best.py::test_the_best_epoch_may_be_one_before_growth",
    ),
    mutant(
        "averages_do_not_grow_along",
        "grower/grower.py",
        "        self._averages.update()\n        decision = replace",
        "        decision = replace",
        "grower/test_best.py::test_an_average_that_follows_grows_along",
    ),
    mutant(
        "samples_announced_before_they_are_met",
        "tolaria/engine/host.py",
        "return len(self.data.ranges[self._met_phase])",
        "return len(self._coming_samples)",
        "tolaria/engine/test_training.py::test_the_data_change_with_the_phase",
    ),
    mutant(
        "settled_by_the_judged_half",
        "tolaria/engine/population.py",
        "return CoalitionScores(plans, loss, accuracy, judged_loss, judged_accuracy)",
        "return CoalitionScores(plans, judged_loss, judged_accuracy, loss, accuracy)",
        "tolaria/worlds/test_world.py::test_nothing_that_is_decided_by_depends_on_the_judged_half",
    ),
    # Networks and cloning
    mutant(
        "previous_op_unseen",
        "tamiyo/growth_policy.py",
        'one_hot_or_zeros(previous["op"], self.layout.sizes[0])',
        'one_hot_or_zeros(previous["op"], self.layout.sizes[0]) * 0.0',
        _PREVIOUS,
    ),
    mutant(
        "previous_slot_unseen",
        "tamiyo/growth_policy.py",
        "torch.cat((first, acted_on.unsqueeze(-1), rest), dim=-1)",
        "torch.cat((first, torch.zeros_like(acted_on).unsqueeze(-1), rest), dim=-1)",
        _PREVIOUS,
    ),
    mutant(
        "previous_blueprint_unseen",
        "tamiyo/growth_policy.py",
        'planted = one_hot_or_zeros(previous["blueprint"], blueprints.shape[2])',
        'planted = one_hot_or_zeros(previous["slot"] * 0, blueprints.shape[2])',
        _PREVIOUS,
    ),
    mutant(
        "previous_ways_unseen",
        "tamiyo/growth_policy.py",
        "choices.index_select(-1, way_heads).eq(way_choices).float()",
        "choices.index_select(-1, way_heads).eq(way_choices).float() * 0.0",
        _PREVIOUS,
    ),
    mutant(
        "gate_not_in_the_budget",
        "tamiyo/masks.py",
        "at_birth = np.where(gate_fits, _EVERY, _NO_GATE)",
        "at_birth = np.where(gate_fits, _EVERY, _EVERY)",
        "tamiyo/test_deciders.py::test_a_gate_counts_in_the_budget",
    ),
    mutant(
        "gate_not_in_the_budget_of_rules",
        "tamiyo/masks.py",
        "elif max(costs.values()) + gates[slot] > room:",
        "elif max(costs.values()) > room:",
        "tamiyo/test_deciders.py::test_a_gate_counts_in_the_budget",
    ),
    mutant(
        "loss_of_a_clone_over_forced_steps",
        "simic/cloning.py",
        "        free = ~evaluation.forced\n        steps = int(free.sum())",
        "        free = torch.ones_like(evaluation.forced)\n        steps = int(free.sum())",
        "simic/cloning/test_cloning.py::test_steps_without_a_choice_are_neither_taught_nor_counted",
    ),
    mutant(
        "agreement_on_forced_steps",
        "simic/cloning.py",
        "        free = ~evaluation.forced\n        if not",
        "        free = torch.ones_like(evaluation.forced)\n        if not",
        "simic/cloning/test_cloning.py::test_steps_without_a_choice_are_neither_taught_nor_counted",
    ),
    # Going on with a run
    mutant(
        "checksums_of_a_checkpoint_not_looked_at",
        "simic/agent/checkpoint.py",
        "content = _sound_copy(path)",
        "content = io.BytesIO(path.read_bytes())",
        "simic/agent/test_checkpoint.py::test_overwritten_bytes_are_found_wherever_they_are",
    ),
    mutant(
        "first_sound_checkpoint_instead_of_the_newest",
        "runs/resuming.py",
        'newest = max(sound, key=lambda path: sound[path]["extra"]["round"], default=None)',
        "newest = next(iter(sound), None)",
        "runs/test_resuming.py::test_the_newest_is_the_one_of_the_latest_round_whatever_the_clock_says",
    ),
    mutant(
        "any_setting_may_change",
        "simic/config/training_config.py",
        '        if refused:\n            raise ConfigError(\n                f"a run goes on',
        '        if refused and not same:\n            raise ConfigError(\n                f"a run goes on',
        "runs/test_resuming.py::test_a_resume_under_other_settings_is_refused_with_all_that_differs",
    ),
    # What a Grower chooses by itself
    mutant(
        "margin_without_noise",
        "tamiyo/rules/by_layout.py",
        "margin = self.noise_margin * noise_of(self.memory.scores)",
        "margin = 0.0",
        f"{_BY_LAYOUT}test_what_exceeds_the_noise_of_validation_is_kept_or_pruned_at_its_age",
    ),
    mutant(
        "trials_at_any_learning_rate",
        "tamiyo/rules/by_layout.py",
        "return soon_enough and (share is None or share >= self.least_rate)",
        "return soon_enough",
        f"{_BY_LAYOUT}test_nothing_begins_when_the_learning_rate_has_fallen",
    ),
    mutant(
        "frozen_by_share_alone",
        "grower/choosing.py",
        "return all(modules.index(owner) > last for owner in owners)",
        "return True",
        "grower/test_choosing.py::test_what_counts_as_frozen",
    ),
    mutant(
        "highest_rate_forgotten",
        "grower/host.py",
        "highest = max(rate, self.report.highest_learning_rate or 0.0)",
        "highest = rate",
        "grower/test_choosing.py::test_the_learning_rate_is_shown_as_a_share_of_its_highest",
    ),
    mutant(
        "budget_not_shared",
        "tamiyo/rules/frozen_spread.py",
        "(budget - situation.signals.added_parameters) / max(len(slots), 1)",
        "(budget - situation.signals.added_parameters)",
        "tamiyo/rules/test_frozen_spread.py::test_a_budget_is_divided_evenly_and_spent_on_the_largest_kind_that_fits",
    ),
    # Several processes
    mutant(
        "gradients_of_seeds_summed_over_processes",
        "kasmina/replicas.py",
        "torch.cat((*gradients, *present, *flags)).div_(self.size)",
        "torch.cat((*gradients, present, *flags))",
        f"{_PROCESSES}test_processes_are_equal_and_equal_to_one[ddp-1-18]",
    ),
    mutant(
        "each_process_its_own_seed",
        "kasmina/replicas.py",
        "        self._spread((*seed.parameters(), *seed.buffers()))\n        self._notice",
        "        self._notice",
        f"{_PROCESSES}test_rank_0_decides_and_its_seeds_are_everybodys",
    ),
    mutant(
        "a_broken_seed_skipped_in_one_process",
        "kasmina/replicas.py",
        "            mark.logical_or_(found > 0.0)\n",
        "            del mark, found\n",
        f"{_PROCESSES}test_a_seed_that_breaks_in_one_process_is_not_updated_in_any[ddp]",
    ),
    mutant(
        "drift_between_processes_unseen",
        "kasmina/replicas.py",
        "        self._refuse_drift()\n",
        "",
        f"{_PROCESSES}test_drift_is_an_error_that_names_the_parameter",
    ),
    mutant(
        "a_metric_of_one_share",
        "grower/validating.py",
        "            tally.share(model.replicas)\n",
        "            pass\n",
        f"{_PROCESSES}test_a_metric_sees_the_shares_of_all",
    ),
)
