use super::*;
use crate::contracts::file;

const DAY: u8 = 200;
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

fn contracts(dsps: impl Iterator<Item = u32>) -> Contracts {
    let dsps = dsps.map(|dsp| {
        format!(
            "[dsp.{dsp}]\nname = 'd{dsp}'\nsync = {{ image = 'https://d.example/?r={{RETURN}}' }}\n"
        )
    });
    let head = "[privacy]\n[plan]\nbase = 'https://m.example'\n".to_owned();
    file::parse(&dsps.fold(head, |text, dsp| text + &dsp)).unwrap()
}

fn text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The first byte of the SHA-256 of `u`, as `printf u | sha256sum` prints it.
const CHECK: u8 = 0x0b;

#[test]
fn hints_are_read_back_by_dsp_id() {
    let contracts = contracts([1, 17, u32::MAX].into_iter());
    let mut hints = Hints::new("u");
    hints.offer(DspId(u32::MAX), DAY);
    hints.offer(DspId(u32::MAX), DAY);
    assert!(hints.accept(DspId(17), DAY));
    hints.offer(DspId(1), DAY);
    let written = hints.clone().write(DAY, &contracts);
    let bytes = [
        [VERSION, CHECK].as_slice(),
        &[0, 0, 0, 1, DAY, 1],
        &[0, 0, 0, 17, DAY, 0],
        &[255, 255, 255, 255, DAY, 2],
    ];
    assert_eq!(written, text(&bytes.concat()));
    assert_eq!(Hints::read(Some(written.as_bytes()), "u"), hints);
}

#[test]
fn invalid_cut_foreign_and_future_hints_count_as_none() {
    let valid = [VERSION, CHECK, 0, 0, 0, 17, DAY, 0, 0, 0, 0, 18, DAY, 1];
    let read = |text: &str, user| Hints::read(Some(text.as_bytes()), user);
    let whole = text(&valid);
    assert!(read(&whole, "u").is_in_sync(DspId(17), DAY, WEEK));
    for cut in 0..whole.len() {
        let hints = read(&whole[..cut], "u");
        assert!(hints.entries.len() < 2, "{cut}");
    }
    let mut swapped = valid;
    swapped[5] = 19;
    let mut twice = valid;
    twice[5] = 18;
    let mut future = valid;
    future[0] = VERSION + 1;
    for (invalid, user) in [
        (whole.clone(), "v"),
        (text(&swapped), "u"),
        (text(&twice), "u"),
        (text(&future), "u"),
        (text(&valid[..13]), "u"),
        (text(&[VERSION]), "u"),
        (format!("{whole}=="), "u"),
        (format!("{whole}!"), "u"),
        ("\u{fc}".to_owned(), "u"),
        (String::new(), "u"),
        ("A".repeat(4_000), "u"),
    ] {
        assert_eq!(read(&invalid, user), Hints::new(user), "{invalid}");
    }
    assert_eq!(Hints::read(None, "u"), Hints::new("u"));
}

#[test]
fn match_is_in_sync_until_its_time_of_refresh() {
    let mut hints = Hints::new("u");
    hints.accept(DspId(17), DAY);
    for (age, expected) in [(0, true), (6, true), (7, false), (55, false), (199, false)] {
        let day = DAY.wrapping_add(age);
        assert_eq!(hints.is_in_sync(DspId(17), day, WEEK), expected, "{age}");
    }
    // The clock of the producer that noted it was ahead.
    assert!(hints.is_in_sync(DspId(17), DAY - 1, WEEK));
    assert!(hints.is_in_sync(DspId(17), DAY.wrapping_add(200), WEEK));
    hints.offer(DspId(17), DAY);
    assert!(!hints.is_in_sync(DspId(17), DAY, WEEK));
}

#[test]
fn offers_are_those_of_one_day_without_a_match() {
    let mut hints = Hints::new("u");
    for count in 1..=300_u16 {
        hints.offer(DspId(17), DAY);
        assert_eq!(u16::from(hints.offers(DspId(17), DAY)), count.min(255));
    }
    assert_eq!(hints.offers(DspId(17), DAY + 1), 0);
    assert!(hints.accept(DspId(17), DAY));
    assert_eq!(hints.offers(DspId(17), DAY), 0);
    assert!(!hints.accept(DspId(17), DAY));
    assert!(hints.accept(DspId(17), DAY + 1));
}

#[test]
fn useless_entries_are_not_written() {
    let contracts = contracts([1, 2, 3, 4].into_iter());
    let mut hints = Hints::new("u");
    hints.accept(DspId(1), DAY - 6);
    hints.accept(DspId(2), DAY - 7);
    hints.offer(DspId(3), DAY - 1);
    hints.offer(DspId(4), DAY);
    hints.accept(DspId(5), DAY);
    let written = hints.write(DAY, &contracts);
    let read = Hints::read(Some(written.as_bytes()), "u");
    let dsps: Vec<_> = read.entries.iter().map(|it| it.dsp_id.0).collect();
    assert_eq!(dsps, [1, 4]);
}

#[test]
fn hundred_entries_take_803_characters_and_the_oldest_are_dropped() {
    let contracts = contracts(1..=130);
    let mut hints = Hints::new("u");
    for dsp in 1..=130 {
        let is_old = dsp % 3 == 0;
        hints.accept(DspId(dsp), if is_old { DAY - 1 } else { DAY });
    }
    let written = hints.write(DAY, &contracts);
    assert_eq!(written.len(), 803);
    let read = Hints::read(Some(written.as_bytes()), "u");
    assert_eq!(read.entries.len(), 100);
    let newest = read.entries.iter().filter(|it| it.day == DAY).count();
    assert_eq!(newest, 87);
}
