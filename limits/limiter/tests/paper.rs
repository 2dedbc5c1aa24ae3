//! Every run that the article prints, by name, with what is right where it errs.

use limiter::demo;

#[test]
fn ten_calls_without_a_limit_all_pass() {
    assert_eq!(demo::unlimited().here, "10 in 0 s");
}

#[test]
fn ten_calls_one_a_second_pass_every_algorithm_of_ten_a_second() {
    for named in demo::ten_a_second() {
        assert_eq!(demo::one_each_second(&named).here, "10 of 10", "{named:?}");
    }
}

#[test]
fn warm_up_limiter_admits_two_of_ten() {
    assert_eq!(demo::warm_up().here, demo::warm_up().printed);
}

#[test]
fn token_bucket_with_a_burst_of_one_admits_three_of_ten() {
    assert_eq!(demo::burst_of_one().here, "3 of 10: #0, #4, #8");
}

#[test]
fn sliding_counter_weighs_by_the_share_that_has_elapsed() {
    assert_eq!(
        demo::elapsed_share().here,
        "3 of 5 pass: 9 · 0.75 + 3 = 9.75"
    );
    assert_eq!(demo::forty_two().here, "18 pass, the next is refused");
}

#[test]
fn three_hundred_a_second_are_not_one_each_three_milliseconds() {
    assert_eq!(
        demo::whole_milliseconds().here,
        "300/s, and 250/s asked each ms"
    );
}

#[test]
fn refused_calls_do_not_count() {
    assert_eq!(
        demo::constant_overload().here,
        "100 pass; with count_refused 10"
    );
}
